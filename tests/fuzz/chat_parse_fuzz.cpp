// Any text as a model's reply: cutting it changes nothing, and arguments are always JSON. The first byte chooses the
// thinking mode and the cuts.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "src/chat/messages.h"
#include "src/chat/parser.h"
#include "src/chat/template/json.h"

namespace {

m3::chat::Tools make_tools() {
  using namespace m3::chat;
  return parse_chat_request(
             parse_json(
                 R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f", "parameters": {
               "type": "object", "properties": {"s": {"type": "string"}, "n": {"type": ["integer", "null"]}, "any": {},
               "l": {"type": "array", "items": {"type": "number"}}, "o": {"type": "object", "properties": {"s": {"type": "string"},
               "l": {"type": "array", "items": {"$ref": "#"}}}}, "u": {"anyOf": [{"type": "string"}, {"type": "array"}]},
               "e": {"enum": ["a", 1, null]}, "b": {"type": "boolean"}}}}}]})",
                 "request"))
      .parsed_tools;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace m3::chat;
  static const Tools tools = make_tools();
  if (size == 0) return 0;
  const auto mode = static_cast<ThinkingMode>(data[0] % 3);
  std::size_t step = 1 + data[0] / 3 % 7;
  const auto form = static_cast<AnswerForm>(data[0] / 21 % 3);
  std::string text;
  // "~" is short for the namespace token, so that structure is found quickly.
  for (std::size_t i = 1; i < size; ++i) {
    if (data[i] == '~') {
      text += "]<]minimax[>[";
    } else {
      text += static_cast<char>(data[i]);
    }
  }
  const ParsedOutput whole = parse_output(text, tools, mode, false, form);
  OutputParser parser(tools, mode, false, form);
  ParsedOutput pieces;
  for (std::size_t at = 0; at < text.size(); at += step) {
    append_events(pieces, parser.feed(std::string_view(text).substr(at, step)));
  }
  append_events(pieces, parser.finish());
  bool same = pieces.content == whole.content && pieces.reasoning == whole.reasoning &&
              pieces.calls.size() == whole.calls.size();
  for (std::size_t i = 0; same && i < whole.calls.size(); ++i) {
    same = pieces.calls[i].name == whole.calls[i].name && pieces.calls[i].arguments == whole.calls[i].arguments &&
           nlohmann::json::accept(whole.calls[i].arguments);
  }
  if (!same) __builtin_trap();
  return 0;
}
