#include "src/cli/chat_view.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/tokenizer/utf8.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view dim = "\x1b[2m";
constexpr std::string_view bold = "\x1b[1m";
constexpr std::string_view plain = "\x1b[0m";

std::string indented(const std::string& text) {
  std::string out = "\n    ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character c = decode_utf8(text, at);
    const bool control = (c.code < 0x20 && c.code != '\n' && c.code != '\t') || (c.code >= 0x7f && c.code < 0xa0);
    out += control ? "\xef\xbf\xbd" : text.substr(at, c.length);
    at += c.length;
  }
  return out;
}

std::string argument_lines(const std::string& json) {
  const Json arguments = Json::parse(json, nullptr, false);
  if (!arguments.is_object()) return fmt::format("  {}\n", json);
  std::string out;
  for (const auto& [key, value] : arguments.items()) {
    const std::string text =
        value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    out += text.find('\n') == std::string::npos ? fmt::format("  {}: {}\n", key, text)
                                                : fmt::format("  {}:{}\n", key, indented(text));
  }
  return out;
}

void ChatView::put(std::string_view text) {
  if (text.empty()) return;
  write_(text);
  line_open_ = text.back() != '\n';
}

void ChatView::put_model_text(std::string_view text) {
  if (skip_newlines_) {
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return;
    skip_newlines_ = false;
  }
  put(style_.terminal ? printable(text) : std::string(text));
}

void ChatView::end_line() {
  if (line_open_) put("\n");
}

void ChatView::end_call() {
  if (part_ != Part::call) return;
  if (style_.terminal) {
    put(printable(argument_lines(arguments_)));
  } else {
    put(arguments_ + ")\n");
  }
  arguments_.clear();
}

void ChatView::begin(Part part) {
  const Part before = part_;
  end_call();
  part_ = part;
  if (before == Part::reasoning) {
    if (style_.color) write_(plain);
    end_line();
    put("\n");
    skip_newlines_ = true;
  }
  if (part == Part::reasoning) {
    end_line();
    skip_newlines_ = true;
    if (style_.color) write_(dim);
  } else if (part == Part::call) {
    skip_newlines_ = false;
    end_line();
  }
}

void ChatView::show(const chat::ParseEvent& event) {
  using Kind = chat::ParseEventKind;
  switch (event.kind) {
    case Kind::reasoning:
      if (!style_.reasoning) return;
      if (part_ != Part::reasoning) begin(Part::reasoning);
      return put_model_text(event.text);
    case Kind::content:
      if (part_ != Part::content) begin(Part::content);
      return put_model_text(event.text);
    case Kind::call:
      begin(Part::call);
      if (style_.terminal) {
        put(fmt::format("{}→ {}{}\n", style_.color ? bold : "", printable(event.text), style_.color ? plain : ""));
      } else {
        put(event.text + "(");
      }
      return;
    case Kind::arguments: arguments_ += event.text; return;
  }
}

void ChatView::end_reply() {
  end_call();
  if (part_ == Part::reasoning && style_.color) write_(plain);
  end_line();
  part_ = Part::nothing;
  skip_newlines_ = false;
}

void ChatView::note(std::string_view line) {
  end_reply();
  put(std::string(line) + "\n");
}

}  // namespace m3::cli
