// Text of grammars in the EBNF notation that the engine compiles.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace m3::grammar {

// `text` as a literal: quotes around it, escapes where the notation needs them.
std::string quote(std::string_view text);
// Text that matches a regular expression as a whole.
std::string regex(std::string_view pattern);
// A class of every character but `excluded` (code points); `always` is more of the class's inside, as it stands.
std::string class_without(const std::vector<char32_t>& excluded, std::string_view always = {});
std::string class_of(char32_t c);
// The code points of valid UTF-8.
std::vector<char32_t> characters(std::string_view text);

// One of several expressions, or several one behind the other.
std::string choose(const std::vector<std::string>& alternatives);
std::string join(const std::vector<std::string>& parts);

// A grammar's text in pieces that joined are the text: what a rewriting looks at.
struct Piece {
  enum class Kind { literal, name, other };  // a quoted string; a rule's or macro's name; all else (classes, comments)
  Kind kind = Kind::other;
  std::string_view text;
};
std::vector<Piece> pieces(std::string_view grammar);
// What a literal stands for, without quotes and escapes; empty where an escape is broken.
std::string unquote(std::string_view literal);
// The grammar with one of its rules renamed.
std::string rename_rule(std::string_view grammar, std::string_view from, std::string_view to);

// Rules, one a line, in the order they were defined.
class Rules {
 public:
  // Errors (input): a grammar of more than 4 MiB.
  void define(std::string_view name, std::string_view body);
  bool has_text() const { return !text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace m3::grammar
