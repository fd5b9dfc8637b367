#include "src/grammar/ebnf.h"

#include <algorithm>
#include <cstdint>

#include "src/base/error.h"

namespace m3::grammar {

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::string regex(std::string_view pattern) { return "Regex(" + quote(pattern) + ")"; }

std::string class_of(char32_t c) { return fmt::format("[\\U{:08x}]", static_cast<std::uint32_t>(c)); }

std::string class_without(const std::vector<char32_t>& excluded, std::string_view always) {
  std::string out = "[^";
  out += always;
  for (const char32_t c : excluded) out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
  return out + "]";
}

std::vector<char32_t> characters(std::string_view text) {
  std::vector<char32_t> out;
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    char32_t c = length == 1 ? first : first & (0xffU >> (length + 1));
    for (std::size_t j = 1; j < length && i + j < text.size(); ++j) {
      c = (c << 6) | (static_cast<unsigned char>(text[i + j]) & 0x3fU);
    }
    out.push_back(c);
    i += length;
  }
  return out;
}

std::string choose(const std::vector<std::string>& alternatives) {
  if (alternatives.size() == 1) return alternatives.front();
  std::string out = "(";
  for (const std::string& alternative : alternatives) {
    if (out.size() > 1) out += " | ";
    out += alternative;
  }
  return out + ")";
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!out.empty()) out += ' ';
    out += part;
  }
  return out.empty() ? "\"\"" : out;
}

std::vector<Piece> pieces(std::string_view grammar) {
  std::vector<Piece> out;
  const auto is_name = [](char c, bool first) {
    return c == '_' || c == '-' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && c >= '0' && c <= '9');
  };
  std::size_t at = 0;
  while (at < grammar.size()) {
    const std::size_t begin = at;
    Piece::Kind kind = Piece::Kind::other;
    const char c = grammar[at];
    if (c == '"' || c == '[') {
      if (c == '"') kind = Piece::Kind::literal;
      const char close = c == '"' ? '"' : ']';
      for (++at; at < grammar.size() && grammar[at] != close; ++at) {
        if (grammar[at] == '\\') ++at;
      }
      at = std::min(at + 1, grammar.size());
    } else if (c == '#') {
      at = std::min(grammar.find('\n', at), grammar.size());
    } else if (is_name(c, true)) {
      kind = Piece::Kind::name;
      while (at < grammar.size() && is_name(grammar[at], false)) ++at;
    } else {
      ++at;
    }
    out.push_back({kind, grammar.substr(begin, at - begin)});
  }
  return out;
}

std::string unquote(std::string_view literal) {
  std::string out;
  if (literal.size() < 2) return out;
  literal = literal.substr(1, literal.size() - 2);
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\') {
      out += literal[i];
      continue;
    }
    if (++i >= literal.size()) return {};
    switch (literal[i]) {
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case '"':
      case '\'':
      case '\\':
      case '/':
      case ']':
      case '[':
      case '-': out += literal[i]; break;
      default: return {};  // numbers of characters: no special token is written so
    }
  }
  return out;
}

std::string rename_rule(std::string_view grammar, std::string_view from, std::string_view to) {
  std::string out;
  for (const Piece& piece : pieces(grammar)) {
    out += piece.kind == Piece::Kind::name && piece.text == from ? to : piece.text;
  }
  return out;
}

void Rules::define(std::string_view name, std::string_view body) {
  constexpr std::size_t max_bytes = std::size_t{4} << 20;
  text_ += name;
  text_ += " ::= ";
  text_ += body;
  text_ += '\n';
  if (text_.size() > max_bytes) fail("the grammar is too large: more than {} MiB", max_bytes >> 20);
}

}  // namespace m3::grammar
