// A profiled model computes the same, and its entries hold the work that the configuration implies.
#include "src/engine/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/engine/benchmark.h"
#include "src/engine/loaded_model.h"
#include "tests/support/test_configs.h"

namespace m3::engine {
namespace {

LoadedModelOptions options_for(Profile* profile) {
  LoadedModelOptions options;
  options.device = "scalar";
  options.threads = 1;
  options.max_model_len = 512;
  options.profile = profile;
  return options;
}

Checkpoint small_checkpoint() {
  return Checkpoint::random(parse_config(test::small_config().dump(), "test"), "bf16", 1);
}

const Profile::Entry& entry_of(const Profile& profile, const std::string& operation) {
  const auto found = std::ranges::find(profile.entries(), operation, &Profile::Entry::operation);
  if (found == profile.entries().end()) throw std::runtime_error("no entry " + operation);
  return *found;
}

std::vector<float> forward(LoadedModel& model) {
  kv::SequencePages sequence(model.pages());
  EXPECT_TRUE(sequence.extend(200));
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < 200; ++id) ids.push_back(id % static_cast<std::int32_t>(model.config().vocab_size));
  model::RaggedBatch batch;
  batch.add(ids, 0, sequence.pages());
  const std::int32_t last = 199;
  const ops::Tensor logits = model.forward(batch, {&last, 1});
  const auto* values = reinterpret_cast<const float*>(logits.data);
  return {values, values + logits.columns};
}

TEST(Profile, ChangesNoResultAndCountsTheWork) {
  Profile profile;
  LoadedModel plain(small_checkpoint(), options_for(nullptr));
  LoadedModel profiled(small_checkpoint(), options_for(&profile));
  EXPECT_EQ(forward(plain), forward(profiled));

  const ModelConfig& config = profiled.config();
  const auto sparse = std::ranges::count_if(config.layers, &LayerKind::sparse_attention);
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  ASSERT_GT(sparse, 0);
  ASSERT_LT(sparse, layers);
  EXPECT_EQ(entry_of(profile, "attend_sparse").calls, sparse);
  EXPECT_EQ(entry_of(profile, "attend_dense").calls, layers - sparse);
  EXPECT_EQ(entry_of(profile, "add_norm").calls, 2 * layers + 1);

  const double heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const double visible = 200.0 * 201 / 2;
  const Profile::Entry& dense = entry_of(profile, "attend_dense");
  EXPECT_EQ(dense.operations, 4 * heads * 128 * visible * static_cast<double>(layers - sparse));
  EXPECT_EQ(dense.bytes, 200 * kv_heads * 2 * 128 * 2 * static_cast<double>(layers - sparse));
  EXPECT_EQ(entry_of(profile, "select_blocks").operations, 2 * kv_heads * 128 * visible * static_cast<double>(sparse));
  const WeightMatrix& head = profiled.checkpoint().weights().lm_head;
  EXPECT_EQ(entry_of(profile, "logits").bytes, static_cast<double>(head.stored_bytes()));
}

TEST(Profile, BenchmarkLeavesTheTimedPassesOnly) {
  Profile profile;
  LoadedModel model(small_checkpoint(), options_for(&profile));
  time_decode(model, 1, 100, 3, &profile);
  EXPECT_EQ(entry_of(profile, "logits").calls, 3);
  EXPECT_GT(entry_of(profile, "logits").seconds, 0);
}

}  // namespace
}  // namespace m3::engine
