// Whether an expression or a grammar can be read at all, before it is compiled.
#pragma once

#include <string>

namespace m3::grammar {

// Errors (input): `pattern` is no regular expression, or asks for what cannot be enforced (back-references, look-around,
// word boundaries); the line begins with `path`.
void check_regex(const std::string& pattern, const std::string& path);
// What is wrong with it, as check_regex() would say it; empty: nothing.
std::string regex_problem(const std::string& pattern);
// Errors (input): `text` is no EBNF grammar with a rule `root`; the line begins with `path` and says line and column.
void check_grammar(const std::string& text, const std::string& path);

}  // namespace m3::grammar
