// What a model wrote, split into content, reasoning and tool calls, as it comes (spec §5.4–5.5).
//
// The events of every way of cutting a text, joined, are those of the whole text. Free replies are not judged by token
// ids, since a model may spell a marker with ordinary tokens (addenda §2). Where a constraint holds the answer, it says
// what can be a marker there (AnswerForm). A parser is a plain value: a copy is a snapshot to roll back to.
//
// Results of malformed output:
// - reasoning ends at the first end tag; a think tag inside reasoning is dropped;
// - without an end tag all is reasoning;
// - a leading end tag is dropped in every mode; a later stray one is dropped too, except with thinking disabled,
//   where the rest of the text is passed on as it is;
// - outside of reasoning a think tag opens it again, except within an answer with thinking disabled;
// - a tool block inside reasoning is a call, and reasoning goes on behind it;
// - inside a block, an invoke, the block's end and the end of the text close what was left open, and the arguments
//   are complete JSON in any case; an invoke without a name is skipped;
// - markers without the namespace token, or an invoke outside of a block, are text;
// - what is only the beginning of a marker at the end is text;
// - white space alone before, between and after tool blocks is dropped;
// - in an answer that has a form, what spells a marker is text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/arguments.h"
#include "src/chat/template/value.h"

namespace m3::chat {

enum class ThinkingMode : std::uint8_t { adaptive, enabled, disabled };
const char* thinking_mode_name(ThinkingMode mode);
// Absent for another word than adaptive, enabled and disabled.
std::optional<ThinkingMode> find_thinking_mode(std::string_view name);

struct Tool {
  std::string name;
  Value parameters;  // a JSON Schema, or undefined
};
// Shared by the copies of a parser, which point into it.
using Tools = std::shared_ptr<const std::vector<Tool>>;

enum class ParseEventKind : std::uint8_t {
  content,
  reasoning,
  call,       // a call begins: `text` is its name
  arguments,  // more of the JSON text of its arguments
};

struct ParseEvent {
  ParseEventKind kind;
  std::string text;
  int call = -1;  // index among this reply's calls, from 0
};

// What the answer, behind the reasoning, is held to. Where the request gives it a form (a JSON schema, an expression, …)
// no marker's token can come within it, so letters that spell one, in a JSON string for instance, are text.
enum class AnswerForm : std::uint8_t {
  free,           // text and calls; markers count wherever they stand
  held,           // text in a form
  held_or_calls,  // text in a form, or a tool block alone
};

class OutputParser {
 public:
  // `continues`: the reply goes on with a message that was begun, so no reasoning is expected first.
  OutputParser(Tools tools, ThinkingMode mode, bool continues = false, AnswerForm form = AnswerForm::free);

  // Where the answer has a form: the first token was no think tag, so the answer has begun, whatever its letters spell.
  // Without effect elsewhere.
  void skip_reasoning();
  // The next piece of the model's text, cut anywhere, even inside a character. Neighbouring deltas of one kind come
  // as one event. Bytes that are not UTF-8 become U+FFFD.
  std::vector<ParseEvent> feed(std::string_view text);
  // After the last piece. What was only begun of a marker is text, but within a tool block it is left out. The parser
  // is then spent.
  std::vector<ParseEvent> finish();

  // For what begins after the reasoning: grammars and thinking budgets.
  bool in_reasoning() const { return state_ == State::reasoning; }
  int calls() const { return calls_; }

 private:
  enum class State : std::uint8_t {
    content,
    reasoning,
    block,    // inside a tool block, outside of an invoke
    call,     // inside an invoke
    skipped,  // inside an invoke without a name
  };
  struct Tag;  // a tag behind a namespace token

  void take(std::string_view text);
  void advance(bool final);
  std::size_t find_marker(std::string_view text, std::size_t& length, Tag& tag) const;
  bool is_cut_protocol(std::string_view begun) const;
  void handle_text(std::string_view text);
  void handle_think(bool end);
  void handle_tag(const Tag& tag, std::string_view raw);
  void handle_block_tag(const Tag& tag);
  void handle_call_tag(const Tag& tag, std::string_view raw);
  void open_block();
  void close_block();
  void begin_call(const std::string& name);
  void end_call();
  void emit(ParseEventKind kind, std::string_view text);
  void emit_content(std::string_view text);
  void end_segment();
  bool in_held_answer() const;

  Tools tools_;
  ThinkingMode mode_;
  AnswerForm form_;
  State state_ = State::content;
  State outside_ = State::content;  // where the open block began
  bool block_begun_ = false;
  bool answer_begun_ = false;      // with thinking disabled: the text is the answer from here on
  bool segment_has_text_ = false;  // since the last marker
  std::string blank_;              // white space held at a segment's beginning
  std::string pending_;            // not yet certain
  std::string partial_;            // bytes of an unfinished character
  std::optional<ArgumentBuilder> arguments_;
  int calls_ = 0;
  std::vector<ParseEvent> events_;
};

// A whole text's result.
struct ParsedCall {
  std::string name;
  std::string arguments;  // JSON text
};
struct ParsedOutput {
  std::string content;
  std::string reasoning;
  std::vector<ParsedCall> calls;
};
ParsedOutput parse_output(std::string_view text, Tools tools, ThinkingMode mode, bool continues = false,
                          AnswerForm form = AnswerForm::free);
// Adds events to a result: what a client that joins deltas ends up with.
void append_events(ParsedOutput& output, const std::vector<ParseEvent>& events);

}  // namespace m3::chat
