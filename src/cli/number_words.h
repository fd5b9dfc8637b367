// Numbers with a unit behind them, as launch scripts write them: 32k, 4G, 1.5GiB.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace m3::cli {

// As in vLLM small letters are powers of 1000 and capitals powers of 1024: k m g t, K M G T. KiB, MiB, GiB and TiB are
// powers of 1024, kB, KB, MB, GB and TB powers of 1000. A fraction may stand before a unit where a whole number comes
// of it, rounded down. Nothing: something else, or more than 2^62.
std::optional<std::int64_t> parse_number_words(std::string_view text);

// For options: the number in place of the words. What is none is refused.
extern const CLI::Validator byte_words;
// Likewise of tokens; "auto" is 0.
extern const CLI::Validator token_words;

}  // namespace m3::cli
