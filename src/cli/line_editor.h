// Lines from a person at a terminal: editing and history by libedit.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace m3::cli {

struct InputLine {
  enum class Kind {
    text,
    interrupted,  // Ctrl-C; what was typed is gone
    end,          // Ctrl-D on an empty line, or the terminal went away
  };
  Kind kind = Kind::text;
  std::string text;
  bool was_empty = true;  // nothing had been typed when Ctrl-C came
};

// One at a time: it owns the terminal while read() runs.
class LineEditor {
 public:
  // Errors: libedit cannot use the terminal.
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // A whole message. A backslash at a line's end goes on in the next one; a paste of several lines is taken as one
  // message, whose last line can still be edited.
  InputLine read(const std::string& prompt);

 private:
  struct State;
  InputLine read_line(const std::string& prompt);

  std::unique_ptr<State> state_;
};

}  // namespace m3::cli
