#include "src/checkpoint/seeded_weights.h"

#include <cmath>

#include "src/base/error.h"

namespace m3 {

namespace {

bool has_suffix(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  return name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.';
}

// The vision tower's norms multiply by w, not by 1 + w.
bool vision_norm(std::string_view name) {
  return has_suffix(name, "pre_layrnorm.weight") || has_suffix(name, "layer_norm1.weight") ||
         has_suffix(name, "layer_norm2.weight");
}

double plain_bound(std::string_view name, std::int64_t columns) {
  if (name.ends_with("norm.weight") || vision_norm(name)) return 0.25;
  if (has_suffix(name, "e_score_correction_bias")) return 0.05;
  if (has_suffix(name, "embed_tokens.weight")) return std::sqrt(3.0);
  return std::sqrt(3.0 / static_cast<double>(columns));
}

}  // namespace

std::uint64_t seeded_key(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash ^ (seed * 0x9E3779B97F4A7C15u);
}

double seeded_bound(std::string_view name, std::int64_t columns, const SeededGains& gains) {
  double bound = plain_bound(name, columns);
  bool matched = false;
  for (const auto& [suffix, gain] : gains) {
    if (!has_suffix(name, suffix)) continue;
    if (matched) fail_internal("{}: more than one gain suffix matches", name);
    matched = true;
    bound *= gain;
  }
  return bound;
}

float seeded_centre(std::string_view name) { return vision_norm(name) ? 1.0f : 0.0f; }

bool seeded_stays_float(std::string_view name) {
  return has_suffix(name, "block_sparse_moe.gate.weight") || has_suffix(name, "e_score_correction_bias") ||
         has_suffix(name, "patch_embedding.weight");
}

std::vector<std::int32_t> seeded_tokens(std::uint64_t seed, std::int64_t count, int vocab_size) {
  const std::uint64_t key = seeded_key("tokens", seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    tokens[t] = static_cast<std::int32_t>((seeded_word(key, t) >> 33) % static_cast<std::uint64_t>(vocab_size));
  }
  return tokens;
}

}  // namespace m3
