#include "src/chat/parser.h"

#include <algorithm>
#include <utility>

#include "src/chat/coerce.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {
namespace {

constexpr std::string_view name_space = "]<]minimax[>[";
constexpr std::string_view think_begin = "<mm:think>";
constexpr std::string_view think_end = "</mm:think>";
constexpr std::string_view block_begin = "<tool_call>";
constexpr std::size_t max_gap = 32;    // white space between a namespace token and its tag
constexpr std::size_t max_tag = 1024;  // bytes of a tag; longer ones are text

constexpr auto npos = std::string_view::npos;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// How `text` and `marker` agree at the beginning of `text`.
enum class Match { no, partial, full };

Match match(std::string_view text, std::string_view marker) {
  const std::size_t length = std::min(text.size(), marker.size());
  if (text.substr(0, length) != marker.substr(0, length)) return Match::no;
  return length == marker.size() ? Match::full : Match::partial;
}

// The value of name="…", name='…' or name=… in "invoke name=…"; nothing if it is not an invoke.
std::optional<std::string> invoke_name(std::string_view body) {
  constexpr std::string_view word = "invoke";
  if (body.substr(0, word.size()) != word) return std::nullopt;
  body.remove_prefix(word.size());
  if (!body.empty() && !is_space(body[0])) return std::nullopt;
  body = trim_spaces(body);
  constexpr std::string_view attribute = "name";
  if (body.substr(0, attribute.size()) != attribute) return std::string();
  body = trim_spaces(body.substr(attribute.size()));
  if (body.empty() || body[0] != '=') return std::string();
  body = trim_spaces(body.substr(1));
  if (!body.empty() && (body[0] == '"' || body[0] == '\'')) {
    const std::size_t close = body.find(body[0], 1);
    return std::string(body.substr(1, close == npos ? npos : close - 1));
  }
  return std::string(body);
}

bool is_closing(std::string_view body, std::string_view word) {
  return body.size() > word.size() && body[0] == '/' && trim_spaces(body.substr(1)) == word;
}

}  // namespace

const char* thinking_mode_name(ThinkingMode mode) {
  switch (mode) {
    case ThinkingMode::adaptive: return "adaptive";
    case ThinkingMode::enabled: return "enabled";
    case ThinkingMode::disabled: return "disabled";
  }
  return "";
}

std::optional<ThinkingMode> find_thinking_mode(std::string_view name) {
  for (const ThinkingMode mode : {ThinkingMode::adaptive, ThinkingMode::enabled, ThinkingMode::disabled}) {
    if (name == thinking_mode_name(mode)) return mode;
  }
  return std::nullopt;
}

struct OutputParser::Tag {
  enum class Kind { think_begin, think_end, name_spaced } kind = Kind::name_spaced;
  std::string_view body;  // between < and >
};

OutputParser::OutputParser(Tools tools, ThinkingMode mode, bool continues, AnswerForm form)
    : tools_(std::move(tools)), mode_(mode), form_(form), answer_begun_(continues), segment_has_text_(continues) {
  if (mode == ThinkingMode::enabled && !continues) state_ = State::reasoning;
}

void OutputParser::skip_reasoning() {
  if (form_ != AnswerForm::free && state_ == State::content) answer_begun_ = true;
}

// In the part of a reply that has a form.
bool OutputParser::in_held_answer() const {
  const bool outside = state_ == State::content || (state_ == State::block && outside_ == State::content);
  return form_ != AnswerForm::free && outside && (answer_begun_ || mode_ == ThinkingMode::disabled);
}

std::vector<ParseEvent> OutputParser::feed(std::string_view text) {
  take(text);
  advance(false);
  return std::exchange(events_, {});
}

std::vector<ParseEvent> OutputParser::finish() {
  append_valid_utf8(pending_, partial_);
  partial_.clear();
  advance(true);
  if (state_ == State::call) end_call();
  if (!block_begun_ && !blank_.empty()) emit(ParseEventKind::content, blank_);
  blank_.clear();
  return std::exchange(events_, {});
}

// Whole characters go to pending_.
void OutputParser::take(std::string_view text) {
  if (!partial_.empty()) {
    partial_ += text;
    text = partial_;
  }
  const std::size_t whole = text.size() - incomplete_suffix(text);
  append_valid_utf8(pending_, text.substr(0, whole));
  partial_ = std::string(text.substr(whole));
}

// The first marker of the present state in `text`: its position, and its length or 0 if it is only begun. npos if
// there is none.
std::size_t OutputParser::find_marker(std::string_view text, std::size_t& length, Tag& tag) const {
  const bool held = in_held_answer();
  const bool thinks = state_ != State::call && state_ != State::skipped && !held &&
                      !(mode_ == ThinkingMode::disabled && state_ == State::content && answer_begun_);
  const bool outside = state_ == State::content || state_ == State::reasoning;
  const bool no_calls = held && outside && (form_ == AnswerForm::held || segment_has_text_ || calls_ > 0);
  for (std::size_t at = text.find_first_of("<]"); at != npos; at = text.find_first_of("<]", at + 1)) {
    const std::string_view rest = text.substr(at);
    if (rest[0] == '<') {
      if (!thinks) continue;
      const Match begin = match(rest, think_begin), end = match(rest, think_end);
      if (begin == Match::no && end == Match::no) continue;
      length = begin == Match::full ? think_begin.size() : end == Match::full ? think_end.size() : 0;
      tag.kind = begin == Match::full ? Tag::Kind::think_begin : Tag::Kind::think_end;
      return at;
    }
    if (no_calls) continue;
    const Match prefix = match(rest, name_space);
    if (prefix == Match::no) continue;
    length = 0;
    if (prefix == Match::partial) return at;
    std::size_t i = name_space.size();
    while (i < rest.size() && i < name_space.size() + max_gap && is_space(rest[i])) ++i;
    if (i >= rest.size()) return at;
    if (rest[i] != '<') continue;
    tag.kind = Tag::Kind::name_spaced;
    if (outside) {
      const Match block = match(rest.substr(i), block_begin);
      if (block == Match::no) continue;
      if (block == Match::full) {
        length = i + block_begin.size();
        tag.body = block_begin.substr(1, block_begin.size() - 2);
      }
      return at;
    }
    const std::string_view inside = rest.substr(i + 1, max_tag);
    const std::size_t close = inside.find('>');
    const std::size_t foreign = inside.substr(0, close).find_first_of("\n\r");
    const std::size_t again = inside.substr(0, close).find(name_space.substr(0, 2));
    if (foreign != npos || again != npos) continue;
    if (close == npos) {
      if (inside.size() == max_tag) continue;
      return at;
    }
    length = i + close + 2;
    tag.body = inside.substr(0, close);
    return at;
  }
  return npos;
}

void OutputParser::advance(bool final) {
  std::size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view text = std::string_view(pending_).substr(at);
    std::size_t length = 0;
    Tag tag;
    const std::size_t position = find_marker(text, length, tag);
    const bool begun = answer_begun_, has_text = segment_has_text_;
    handle_text(text.substr(0, position));
    if (position != npos && (begun != answer_begun_ || has_text != segment_has_text_)) {
      at += position;  // what counts as a marker has changed
      continue;
    }
    if (position == npos) {
      at = pending_.size();
      break;
    }
    at += position;
    if (length == 0) {
      if (!final) break;
      if (!is_cut_protocol(text.substr(position))) handle_text(text.substr(position));
      at = pending_.size();
      break;
    }
    const std::string_view raw = text.substr(position, length);
    if (tag.kind == Tag::Kind::name_spaced) {
      handle_tag(tag, raw);
    } else {
      handle_think(tag.kind == Tag::Kind::think_end);
    }
    at += length;
  }
  pending_.erase(0, at);
}

// Whether a marker that the reply's end cut is the format's and not text: inside a block all are. In an argument
// "]" and "]<" may end a text.
bool OutputParser::is_cut_protocol(std::string_view begun) const {
  if (state_ == State::call) return begun.size() >= 3;
  return begun[0] == ']' && (state_ == State::block || state_ == State::skipped);
}

void OutputParser::handle_text(std::string_view text) {
  if (text.empty()) return;
  switch (state_) {
    case State::content:
    case State::block: return emit_content(text);
    case State::reasoning: return emit(ParseEventKind::reasoning, text);
    case State::call: {
      std::string json;
      arguments_->text(text, json);
      return emit(ParseEventKind::arguments, json);
    }
    case State::skipped: return;
  }
}

void OutputParser::handle_think(bool end) {
  if (state_ == State::reasoning) {
    if (!end) return;
    state_ = State::content;
    end_segment();
    answer_begun_ = true;
    return;
  }
  if (state_ != State::content) return;
  if (!segment_has_text_) blank_.clear();
  if (end) {
    answer_begun_ = true;
    return;
  }
  end_segment();
  state_ = State::reasoning;
}

void OutputParser::handle_tag(const Tag& tag, std::string_view raw) {
  switch (state_) {
    case State::content:
    case State::reasoning: return open_block();
    case State::block: return handle_block_tag(tag);
    case State::call:
    case State::skipped: return handle_call_tag(tag, raw);
  }
}

void OutputParser::open_block() {
  outside_ = state_;
  state_ = State::block;
  block_begun_ = true;
  answer_begun_ = true;
  end_segment();
}

void OutputParser::close_block() {
  state_ = outside_;
  end_segment();
}

void OutputParser::handle_block_tag(const Tag& tag) {
  if (is_closing(tag.body, "tool_call")) return close_block();
  if (const auto name = invoke_name(tag.body)) begin_call(*name);
}

void OutputParser::handle_call_tag(const Tag& tag, std::string_view raw) {
  const auto name = invoke_name(tag.body);
  const bool ends_block = is_closing(tag.body, "tool_call");
  const bool ends = name || ends_block || is_closing(tag.body, "invoke") || tag.body == "tool_call";
  if (ends) {
    if (state_ == State::call) end_call();
    state_ = State::block;
    end_segment();
    if (name) begin_call(*name);
    if (ends_block) close_block();
    return;
  }
  if (state_ == State::skipped) return;
  std::string json;
  if (!tag.body.empty() && tag.body[0] == '/') {
    arguments_->close(tag.body.substr(1), raw, json);
  } else {
    arguments_->open(tag.body, raw, json);
  }
  emit(ParseEventKind::arguments, json);
}

void OutputParser::begin_call(const std::string& name) {
  end_segment();
  if (name.empty()) {
    state_ = State::skipped;
    return;
  }
  state_ = State::call;
  SchemaView schema;
  if (tools_) {
    const auto tool = std::find_if(tools_->begin(), tools_->end(), [&](const Tool& t) { return t.name == name; });
    if (tool != tools_->end() && tool->parameters.is(Kind::dict)) schema = SchemaView(tool->parameters);
  }
  arguments_.emplace(std::move(schema));
  events_.push_back({ParseEventKind::call, name, calls_++});
  emit(ParseEventKind::arguments, "{");
}

void OutputParser::end_call() {
  std::string json;
  arguments_->finish(json);
  emit(ParseEventKind::arguments, json);
  arguments_.reset();
}

void OutputParser::emit(ParseEventKind kind, std::string_view text) {
  if (text.empty()) return;
  const int call = kind == ParseEventKind::arguments ? calls_ - 1 : -1;
  if (!events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;
    return;
  }
  events_.push_back({kind, std::string(text), call});
}

void OutputParser::emit_content(std::string_view text) {
  if (!segment_has_text_) {
    std::size_t spaces = 0;
    while (spaces < text.size() && is_space(text[spaces])) ++spaces;
    blank_ += text.substr(0, spaces);
    text.remove_prefix(spaces);
    if (text.empty()) return;
    emit(ParseEventKind::content, blank_);
    blank_.clear();
    segment_has_text_ = true;
    answer_begun_ = true;
  }
  emit(ParseEventKind::content, text);
}

void OutputParser::end_segment() {
  blank_.clear();
  segment_has_text_ = false;
}

void append_events(ParsedOutput& output, const std::vector<ParseEvent>& events) {
  for (const ParseEvent& event : events) {
    switch (event.kind) {
      case ParseEventKind::content: output.content += event.text; break;
      case ParseEventKind::reasoning: output.reasoning += event.text; break;
      case ParseEventKind::call: output.calls.push_back({event.text, {}}); break;
      case ParseEventKind::arguments:
        output.calls.at(static_cast<std::size_t>(event.call)).arguments += event.text;
        break;
    }
  }
}

ParsedOutput parse_output(std::string_view text, Tools tools, ThinkingMode mode, bool continues, AnswerForm form) {
  OutputParser parser(std::move(tools), mode, continues, form);
  ParsedOutput output;
  append_events(output, parser.feed(text));
  append_events(output, parser.finish());
  return output;
}

}  // namespace m3::chat
