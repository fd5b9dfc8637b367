// A reply as a person reads it: on a terminal, or as plain text for a pipe.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/chat/parser.h"

namespace m3::cli {

struct ChatViewStyle {
  bool terminal = false;   // calls over several lines; control characters of the model are not passed on
  bool color = false;      // reasoning dimmed
  bool reasoning = false;  // shown at all
};

class ChatView {
 public:
  using Write = std::function<void(std::string_view)>;
  ChatView(Write write, ChatViewStyle style) : write_(std::move(write)), style_(style) {}

  // A reply's next event. A call is shown as `name({"key": "value"})` in plain text, else as its name with one
  // argument a line.
  void show(const chat::ParseEvent& event);
  // Behind the last event; ends the line.
  void end_reply();
  // A line of the program's own.
  void note(std::string_view line);

 private:
  enum class Part { nothing, reasoning, content, call };
  void begin(Part part);
  void end_call();
  void put(std::string_view text);
  void put_model_text(std::string_view text);
  void end_line();

  Write write_;
  ChatViewStyle style_;
  Part part_ = Part::nothing;
  bool line_open_ = false;
  bool skip_newlines_ = false;  // the view has made the blank line that the model writes too
  std::string arguments_;
};

// With every control character but newline and tab shown as U+FFFD, so that a model cannot steer a terminal.
std::string printable(std::string_view text);

// A call's arguments, one a line: `  city: Rome`; text of several lines is indented below its key.
std::string argument_lines(const std::string& json);

}  // namespace m3::cli
