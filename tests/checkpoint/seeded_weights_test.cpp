#include "src/checkpoint/seeded_weights.h"

#include <gtest/gtest.h>

#include <vector>

namespace m3 {
namespace {

// Every expected value here was printed by tools/goldens/seeded_weights.py.

TEST(SeededWeights, WordsFollowTheName) {
  const std::string name = "language_model.model.layers.3.self_attn.q_proj.weight";
  EXPECT_EQ(seeded_key(name, 0), 0x1c074ed9f59827bau);
  const std::uint64_t key = seeded_key(name, 7);
  EXPECT_EQ(seeded_word(key, 0), 0x94df12e4f062101du);
  EXPECT_EQ(seeded_word(key, 1), 0x0f70746afd763bfau);
  EXPECT_EQ(seeded_word(key, 2), 0x6ce9a8ad180e3d82u);
}

std::vector<int> bf16_of(const std::string& name, std::uint64_t seed, std::int64_t columns, std::int64_t first,
                         std::int64_t count, const SeededGains& gains = {}) {
  std::vector<bf16> values(static_cast<std::size_t>(count));
  seeded_values(seeded_key(name, seed), seeded_bound(name, columns, gains), first, count, values.data());
  std::vector<int> bits;
  for (const bf16 value : values) bits.push_back(value.bits);
  return bits;
}

TEST(SeededWeights, MatricesEqualPython) {
  const std::string name = "language_model.model.layers.3.self_attn.q_proj.weight";
  EXPECT_EQ(bf16_of(name, 7, 6144, 0, 6), (std::vector{0x3b6c, 0xbc9f, 0xbb58, 0xbc11, 0x3cb3, 0x3ca9}));
  EXPECT_EQ(bf16_of(name, 7, 6144, 4 * 6144 - 2, 2), (std::vector{0xbc53, 0x3b93}));
}

TEST(SeededWeights, NamedBoundsEqualPython) {
  EXPECT_EQ(bf16_of("language_model.model.embed_tokens.weight", 2, 8, 0, 4),
            (std::vector{0xbfbf, 0xbfbb, 0x3f83, 0xbf37}));
  EXPECT_EQ(bf16_of("language_model.model.layers.0.self_attn.k_norm.weight", 2, 128, 0, 4),
            (std::vector{0x3e38, 0xbcb8, 0x3e50, 0x3df2}));
  EXPECT_EQ(bf16_of("language_model.lm_head.weight", 2, 96, 0, 4, {{"lm_head.weight", 3.0}}),
            (std::vector{0xbed1, 0xbec9, 0xbeb4, 0x3d34}));
}

TEST(SeededWeights, FloatsEqualPython) {
  const std::string gate = "language_model.model.layers.3.block_sparse_moe.gate.weight";
  std::vector<float> values(4);
  seeded_values(seeded_key(gate, 2), seeded_bound(gate, 96), 0, 4, values.data());
  EXPECT_EQ(values, (std::vector{0x1.650242p-5f, 0x1.5aa548p-3f, -0x1.106d2p-4f, -0x1.884f04p-4f}));
  const std::string bias = "language_model.model.layers.3.block_sparse_moe.e_score_correction_bias";
  values.resize(3);
  seeded_values(seeded_key(bias, 2), seeded_bound(bias, 8), 0, 3, values.data());
  EXPECT_EQ(values, (std::vector{0x1.5ea9e6p-8f, -0x1.3e488p-8f, -0x1.067634p-6f}));
}

TEST(SeededWeights, GainsMatchWholeComponents) {
  EXPECT_EQ(seeded_bound("a.index_q_proj.weight", 3, {{"q_proj.weight", 5}}), 1.0);
  EXPECT_EQ(seeded_bound("a.q_proj.weight", 3, {{"q_proj.weight", 5}}), 5.0);
  EXPECT_TRUE(seeded_stays_float("l.block_sparse_moe.gate.weight"));
  EXPECT_FALSE(seeded_stays_float("l.mlp.gate_proj.weight"));
}

TEST(SeededWeights, TokensEqualPython) {
  EXPECT_EQ(seeded_tokens(3, 8, 200064),
            (std::vector<std::int32_t>{13225, 59192, 115111, 10312, 7136, 85755, 152140, 47775}));
}

}  // namespace
}  // namespace m3
