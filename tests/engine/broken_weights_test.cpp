// Checkpoints whose numbers are broken end with a line, not with quietly different text.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "m3/error.h"
#include "src/engine/trace.h"
#include "tests/support/golden_case.h"
#include "tests/support/seeded_checkpoint.h"

namespace m3::engine {
namespace {

std::string config_of(const std::string& golden) {
  return test::read_file(std::string(M3_TEST_DATA) + "/goldens/" + golden + "/config.json");
}

std::string error_of(const std::filesystem::path& directory) {
  try {
    LoadedModelOptions options;
    options.max_model_len = 64;
    options.max_batched_tokens = 64;
    options.max_logits_rows = 2;
    LoadedModel model(Checkpoint::open(directory), options);
    TraceOptions trace_options;
    trace_options.token_ids = {1, 2, 3, 4};
    trace(model, trace_options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(BrokenWeights, ANaNInNormsOrTheRoutersBiasIsNamed) {
  for (const char* suffix : {"e_score_correction_bias", "index_k_norm.weight", "layernorm.weight"}) {
    const std::string json = config_of("all_sparse");
    std::vector<test::FileTensor> tensors = test::seeded_tensors(parse_config(json, "config"), 3);
    std::string broken;
    for (test::FileTensor& tensor : tensors) {
      if (!tensor.name.ends_with(suffix) || !broken.empty()) continue;
      broken = tensor.name;
      std::memset(tensor.bytes.data(), 0xff, dtype_size(tensor.dtype));  // the first element becomes NaN
    }
    ASSERT_FALSE(broken.empty());
    const test::TemporaryDirectory directory;
    test::write_checkpoint(directory.path(), json, tensors);
    const std::string line = error_of(directory.path());
    EXPECT_NE(line.find(broken), std::string::npos) << line;
    EXPECT_NE(line.find("finite"), std::string::npos) << line;
  }
}

TEST(BrokenWeights, AnOverflowingResidualIsAnErrorNotUniformLogits) {
  auto json = nlohmann::json::parse(config_of("all_sparse"));
  json["text_config"]["routed_scaling_factor"] = 1e30;
  const test::TemporaryDirectory directory;
  test::write_seeded_checkpoint(directory.path(), json.dump(), 3);
  EXPECT_NE(error_of(directory.path()).find("not finite"), std::string::npos) << error_of(directory.path());
}

TEST(BrokenWeights, MoreBlocksThanTheContextHasAreSimplyAllOfThem) {
  auto json = nlohmann::json::parse(config_of("all_sparse"));
  json["text_config"]["sparse_attention_config"]["sparse_topk_blocks"] = 5000;
  const test::TemporaryDirectory directory;
  test::write_seeded_checkpoint(directory.path(), json.dump(), 3);
  EXPECT_EQ(error_of(directory.path()), "accepted");
}

}  // namespace
}  // namespace m3::engine
