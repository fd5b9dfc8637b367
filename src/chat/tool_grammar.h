// Grammars that hold a reply to M3's tool-call format (spec §5.5) and to the tools' schemas, so that OutputParser reads
// back calls that are well formed and typed.
//
//     root ::= N<tool_call>⏎ (N<invoke name="…">…N</invoke>⏎)+ N</tool_call>
//
// Markers are literals of the grammar; where the tokenizer has a token for one, the engine takes that token and not its
// letters. Text can hold neither the token nor the beginning
// of its letters, "]<]".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/chat/messages.h"

namespace m3::chat {

struct ToolRules {
  ToolChoice choice;
  bool parallel = true;  // false: one call at the most
  // Names of tools that asked for `strict`: what their schemas say and a grammar cannot hold is an error. In the others
  // such keywords are left out.
  std::vector<std::string> strict;
  // A grammar with a rule `root`: what a reply that calls no tool looks like, for `automatic`. Empty: free text.
  std::string otherwise;
};

// The grammar, with a rule `root`. Nothing where any text will do: no tools, or automatic where neither a tool asks for
// `strict` nor `otherwise` says anything. `none`: text without a call. `named` and not `parallel`: exactly one call, or
// at most one where the choice is automatic. Errors (input): a tool's or an argument's name that M3's format cannot hold, a
// strict schema that cannot be enforced, an unsatisfiable schema; the line begins with the path.
std::optional<std::string> tool_grammar(const std::vector<Tool>& tools, const ToolRules& rules);

}  // namespace m3::chat
