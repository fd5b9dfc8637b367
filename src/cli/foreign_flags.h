// Launch scripts made for other servers: flags of vLLM, SGLang and llama.cpp that `m3 serve` does not have itself.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace m3::cli {

// `words` with each foreign flag in terms of `command`'s own options, or without it where all it could say holds here in
// any case; vLLM's underscores become dashes. `note`: one line that names those that have no effect here, or empty.
// Errors (usage): a flag that asks for what is not there, by name, with what to do instead;
// a checkpoint behind a list that takes several words.
std::vector<std::string> translate_foreign_flags(const CLI::App& command, const std::vector<std::string>& words,
                                                 std::string& note);

}  // namespace m3::cli
