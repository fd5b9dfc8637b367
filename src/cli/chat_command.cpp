#include "src/cli/chat_command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/chat/messages.h"
#include "src/chat/parser.h"
#include "src/chat/prompt.h"
#include "src/chat/template/json.h"
#include "src/cli/common.h"
#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/utf8.h"

namespace m3::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t file_limit = std::size_t{256} << 20;

std::string read_file(const std::string& path) {
  return path == "-" ? read_standard_input(file_limit) : read_text_input(path, file_limit);
}

std::string to_line(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

chat::ChatRequest read_request(const std::string& body, const std::string& path,
                               const chat::ChatRequestOptions& options) {
  return chat::parse_chat_request(chat::parse_json(body, path == "-" ? "standard input" : path), options);
}

struct RenderOptions {
  std::string request, template_file, checkpoint;
  bool ids = false;
  bool spans = false;
  chat::ChatRequestOptions chat{.check_tool_results = false};
};

void render(const RenderOptions& options) {
  if (options.ids && options.spans) fail_usage("--ids and --spans: give one of them");
  if (!options.template_file.empty() && !options.checkpoint.empty() && !options.ids) {
    fail_usage("--template {} and the checkpoint {}: give one of them (both only with --ids)", options.template_file,
               options.checkpoint);
  }
  const std::string from = options.request.empty() ? "-" : options.request;
  const std::string body = options.request.empty() && ::isatty(STDIN_FILENO) != 0 ? "" : read_file(from);
  if (options.request.empty() && body.empty())
    fail_usage("--request is missing: give a request body's JSON file, or - for standard input");
  const chat::ChatRequest request = read_request(body, from, options.chat);
  const auto checkpoint = [&] { return options.checkpoint.empty() ? shipped_checkpoint() : options.checkpoint; };
  const chat::ChatTemplate chat_template =
      chat::load_chat_template(options.template_file.empty() ? checkpoint() : options.template_file);
  const chat::Text prompt = chat::render_prompt(chat_template, request);
  std::string out;
  if (options.ids) {
    for (const std::int32_t id : chat::encode_prompt(Tokenizer::load(checkpoint()), prompt)) {
      out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    }
    out += "\n";
  } else if (options.spans) {
    prompt.for_each_run([&](std::string_view text, chat::Origin origin) {
      out += to_line({{"origin", origin == chat::Origin::message ? "message" : "template"}, {"text", text}});
    });
  } else {
    out = prompt.bytes();
  }
  write_output(out);
}

struct ParseOptions {
  std::string request, text, stream;
};

// The model's text without a closing end-of-turn token.
std::string read_reply(const std::string& path) {
  constexpr std::string_view end_of_turn = "[e~[";
  std::string text = read_file(path);
  for (const std::string_view tail : {std::string_view("[e~[\n"), end_of_turn}) {
    if (text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0) {
      text.resize(text.size() - tail.size());
      break;
    }
  }
  return text;
}

template <typename Number>
Number parse_number(std::string_view text, std::string_view how) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail_usage("--stream {}: expected bytes, chars, a number of bytes, or random:SEED", how);
  }
  return value;
}

std::vector<std::string_view> cut(std::string_view text, const std::string& how) {
  std::vector<std::string_view> pieces;
  const auto cut_by = [&](auto&& length_at) {
    for (std::size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, length_at(at)));
    }
  };
  constexpr std::string_view random = "random:";
  if (how == "bytes") {
    cut_by([](std::size_t) { return 1; });
  } else if (how == "chars") {
    cut_by([&](std::size_t at) { return decode_utf8(text, at).length; });
  } else if (how.compare(0, random.size(), random) == 0) {
    std::mt19937_64 engine(parse_number<std::uint64_t>(std::string_view(how).substr(random.size()), how));
    cut_by([&](std::size_t) { return 1 + engine() % 12; });
  } else {
    const auto size = parse_number<std::size_t>(how, how);
    if (size == 0) fail_usage("--stream 0: pieces of at least one byte are needed");
    cut_by([&](std::size_t) { return size; });
  }
  return pieces;
}

Json to_json(const chat::ParseEvent& event) {
  switch (event.kind) {
    case chat::ParseEventKind::content: return {{"content", event.text}};
    case chat::ParseEventKind::reasoning: return {{"reasoning_content", event.text}};
    case chat::ParseEventKind::call: return {{"tool_call", {{"index", event.call}, {"name", event.text}}}};
    case chat::ParseEventKind::arguments: return {{"tool_call", {{"index", event.call}, {"arguments", event.text}}}};
  }
  return {};
}

void parse(const ParseOptions& options) {
  if (options.request == "-" && options.text == "-")
    fail_usage("--request - and --text -: only one can be standard input");
  const chat::ChatRequest request =
      read_request(read_file(options.request), options.request, {.check_tool_results = false});
  const std::string text = read_reply(options.text);
  chat::OutputParser parser = request.parser();
  if (!options.stream.empty()) {
    std::string out;
    const auto print = [&](const std::vector<chat::ParseEvent>& events) {
      for (const auto& event : events) out += to_line(to_json(event));
    };
    for (const std::string_view piece : cut(text, options.stream)) print(parser.feed(piece));
    print(parser.finish());
    return write_output(out);
  }
  chat::ParsedOutput output;
  chat::append_events(output, parser.feed(text));
  chat::append_events(output, parser.finish());
  Json calls = Json::array();
  for (const auto& call : output.calls) calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  write_output(to_line({{"content", output.content},
                        {"reasoning_content", output.reasoning},
                        {"tool_calls", calls},
                        {"finish", output.calls.empty() ? "stop" : "tool_calls"}}));
}

}  // namespace

void add_chat_commands(CLI::App& app) {
  const auto rendering = std::make_shared<RenderOptions>();
  CLI::App* command = app.add_subcommand("chat-render", "Print the prompt of a /v1/chat/completions request");
  command->add_option("checkpoint", rendering->checkpoint,
                      "Checkpoint directory whose template is used (default: the one that ships)");
  command->add_option("--request", rendering->request,
                      "The request body, a JSON file; - is standard input (the default where something is piped in)");
  command->add_option("--template", rendering->template_file, "A chat template file instead of a checkpoint's");
  command->add_flag("--ids", rendering->ids, "Print token ids, by the checkpoint's tokenizer");
  command->add_flag("--spans", rendering->spans, "Print JSON lines that tell template text and message text apart");
  command->add_flag("--refuse-late-system", rendering->chat.refuse_late_system,
                    "System messages behind the first are an error instead of being appended to it");
  command->add_flag("--check-tool-results", rendering->chat.check_tool_results,
                    "Tool results that match no call, and calls without a result, are errors, as in a server");
  command->callback([rendering] { render(*rendering); });

  const auto parsing = std::make_shared<ParseOptions>();
  command =
      app.add_subcommand("chat-parse", "Print what a model's text means for a request: content, reasoning, calls");
  command->add_option("--request", parsing->request, "The request body, a JSON file; - is standard input")->required();
  command->add_option("--text", parsing->text, "The model's text; - is standard input")->required();
  command->add_option("--stream", parsing->stream,
                      "Feed the text in pieces (bytes, chars, N bytes, random:SEED) and print each event");
  command->callback([parsing] { parse(*parsing); });
}

}  // namespace m3::cli
