// generation_config.json: end tokens and sampling defaults. What is absent here is left to the caller's defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace m3 {

struct GenerationConfig {
  std::vector<std::int32_t> eos_token_ids;  // a single id or a list in the file; empty where absent
  std::optional<bool> do_sample;            // false means greedy
  std::optional<float> temperature;         // >= 0
  std::optional<int> top_k;                 // 0 = off
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1)
  std::optional<float> repetition_penalty;  // > 0
  std::vector<std::string> without_effect;  // keys there that would change the output but are not implemented
};

// DIRECTORY/generation_config.json; without such a file everything is absent. Errors name the key, what was found and
// what is accepted.
GenerationConfig read_generation_config(const std::filesystem::path& directory);
GenerationConfig parse_generation_config(const std::string& json, const std::string& origin);

}  // namespace m3
