// Template text into tokens, with trim_blocks and lstrip_blocks on and no trailing newline kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace m3::chat {

struct Position {
  int line = 1;
  int column = 1;  // in bytes, from 1
};

// Fails with "chat template line L column C: ...".
[[noreturn]] void fail_at(Position at, std::string_view what);

enum class TokenKind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  floating,
  op,  // `text` is the operator
  end,
};

struct Token {
  TokenKind kind;
  std::string text;  // data, name, unescaped string, digits without underscores, operator
  Position at;

  bool is_op(std::string_view value) const { return kind == TokenKind::op && text == value; }
  bool is_name(std::string_view value) const { return kind == TokenKind::name && text == value; }
};

std::vector<Token> tokenize_template(std::string_view source);
// How an error message calls a token.
std::string describe(const Token& token);

}  // namespace m3::chat
