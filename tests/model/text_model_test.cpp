// The ragged batch: what runs together never changes a result, and truncation forgets.
#include "src/model/text_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/engine/loaded_model.h"
#include "src/model/rotary.h"
#include "tests/support/golden_case.h"

namespace m3::model {
namespace {

using Logits = std::vector<float>;

class Ragged : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cpu" && !ops::cpu_backend_available()) GTEST_SKIP() << "this machine lacks AVX2";
    engine::LoadedModelOptions options;
    options.device = GetParam();
    options.max_model_len = 640;
    options.full_contexts = 4;
    options.max_batched_tokens = 640;
    options.max_sequences = 4;
    options.max_logits_rows = 16;
    model_ = std::make_unique<engine::LoadedModel>(golden_.open(), options);
    ids_ = golden_.ints("token_ids");
  }

  struct Part {
    kv::SequencePages* sequence;
    std::int64_t count;
  };
  // One forward pass over the next tokens of several sequences, each with its own stretch of the prompt; the logits of
  // every part's last token.
  std::vector<Logits> step(const std::vector<Part>& parts) {
    RaggedBatch batch;
    std::vector<std::int32_t> rows;
    for (const Part& part : parts) {
      const std::int64_t first = part.sequence->length();
      EXPECT_TRUE(part.sequence->extend(part.count));
      batch.add({ids_.data() + first, static_cast<std::size_t>(part.count)}, first, part.sequence->pages());
      rows.push_back(batch.tokens() - 1);
    }
    const ops::Tensor logits = model_->forward(batch, rows);
    std::vector<Logits> out;
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      const auto* data = reinterpret_cast<const float*>(logits.row(row));
      out.emplace_back(data, data + logits.columns);
    }
    return out;
  }

  test::GoldenCase golden_{"all_sparse"};
  std::unique_ptr<engine::LoadedModel> model_;
  std::vector<std::int32_t> ids_;
};

TEST_P(Ragged, MixedBatchesEqualSingleRunsBitForBit) {
  kv::SequencePages alone(model_->pages());
  const Logits chunk_alone = step({{&alone, 300}})[0];
  const Logits token_alone = step({{&alone, 1}})[0];
  const Logits verify_alone = step({{&alone, 5}})[0];
  alone.truncate(0);

  kv::SequencePages a(model_->pages()), b(model_->pages()), c(model_->pages());
  step({{&b, 300}});
  step({{&c, 150}, {&a, 3}});
  step({{&c, 151}, {&a, 97}});
  // A prompt chunk, a single decode token and a verify group in one call.
  const std::vector<Logits> mixed = step({{&a, 200}, {&b, 1}, {&c, 5}});
  EXPECT_EQ(mixed[0], chunk_alone);
  EXPECT_EQ(mixed[1], token_alone);
  EXPECT_EQ(mixed[2], verify_alone);
}

TEST_P(Ragged, TruncateForgetsSpeculation) {
  kv::SequencePages sequence(model_->pages());
  step({{&sequence, 250}});
  const Logits expected = step({{&sequence, 10}})[0];
  // Other tokens over the same positions, across a page border, then back.
  sequence.truncate(250);
  std::swap_ranges(ids_.begin() + 250, ids_.begin() + 260, ids_.begin() + 400);
  EXPECT_NE(step({{&sequence, 10}})[0], expected);
  sequence.truncate(250);
  std::swap_ranges(ids_.begin() + 250, ids_.begin() + 260, ids_.begin() + 400);
  EXPECT_EQ(step({{&sequence, 10}})[0], expected);
}

INSTANTIATE_TEST_SUITE_P(Backends, Ragged, testing::Values("scalar", "cpu"),
                         [](const auto& tested) { return tested.param; });

ModelConfig m3_config() {
  ModelConfig config;
  config.hidden_size = 6144;
  config.num_hidden_layers = 60;
  config.num_attention_heads = 64;
  config.num_key_value_heads = 4;
  config.intermediate_size = config.shared_intermediate_size = 3072;
  config.dense_intermediate_size = 12288;
  config.vocab_size = 200064;
  config.max_position_embeddings = 1048576;
  config.rope_theta = 5e6;
  config.num_local_experts = 128;
  config.num_experts_per_tok = 4;
  config.routed_scaling_factor = 2;
  for (int i = 0; i < 60; ++i) config.layers.push_back({.sparse_attention = i >= 3, .moe = i >= 3});
  return config;
}

TEST(TextModel, WorkingMemoryAtM3sWidthsStaysUnder300MB) {
  const ModelConfig config = m3_config();
  TextWeights weights;
  weights.layers.resize(60);
  ThreadPool pool(16);
  for (const char* name : {"scalar", "cpu"}) {
    if (std::string(name) == "cpu" && !ops::cpu_backend_available()) continue;
    const auto backend = ops::make_backend({.name = name, .numerics = ops::Numerics::bf16, .isa = ""}, pool);
    const TextModel model(config, weights, *backend);
    // The default chunk; the longest context, but for the judge, which keeps all scores of a row.
    const ops::Limits limits = model.limits(512, 1, std::string(name) == "cpu" ? 1048576 : 65536, 1);
    EXPECT_LT(model.workspace_bytes(limits) + 4 * 200064, 300'000'000) << name;
  }
}

TEST(Rotary, PlainFrequenciesAreTheSpecs) {
  const Rotary rotary = make_rotary(m3_config());
  ASSERT_EQ(rotary.inv_freq.size(), 32u);
  EXPECT_EQ(rotary.factor, 1.0f);
  const std::vector<std::pair<int, double>> expected = {
      {0, 1.0}, {1, 0.6175287581}, {2, 0.3813417671}, {15, 7.241988160e-4}, {16, 4.472135955e-4}, {31, 3.238715564e-7}};
  for (const auto& [i, value] : expected)
    EXPECT_NEAR(rotary.inv_freq[static_cast<std::size_t>(i)] / value, 1, 1e-6) << i;
}

TEST(Rotary, YarnStretchesOnlySlowFrequencies) {
  ModelConfig config = m3_config();
  config.yarn = YarnScaling{.factor = 2, .original_max_position_embeddings = 524288, .attention_factor = {}};
  const Rotary plain = make_rotary(m3_config());
  const Rotary yarn = make_rotary(config);
  EXPECT_NEAR(yarn.factor, 0.1 * std::numbers::ln2 + 1, 1e-6);
  // Factor 2 of 524288: the ramp runs from index 16 to 24.
  for (std::size_t i = 0; i <= 16; ++i) EXPECT_EQ(yarn.inv_freq[i], plain.inv_freq[i]) << i;
  EXPECT_NEAR(yarn.inv_freq[20] / plain.inv_freq[20], 0.75, 1e-6);
  for (std::size_t i = 24; i < 32; ++i) EXPECT_FLOAT_EQ(yarn.inv_freq[i], plain.inv_freq[i] / 2) << i;
}

}  // namespace
}  // namespace m3::model
