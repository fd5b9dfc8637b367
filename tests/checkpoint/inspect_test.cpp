#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/checkpoint/inspection.h"
#include "src/cli/inspect_command.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_configs.h"

namespace m3 {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Inspection inspect_config(const Json& config) {
  const test::TemporaryDirectory directory;
  test::write_file(directory / "config.json", config.dump());
  return inspect(directory / "config.json", false);
}

std::int64_t parameters(const Inspection& inspection, ParameterGroup group) {
  return inspection.groups[static_cast<std::size_t>(group)].parameters;
}

// Every number of spec §7, from the published configuration alone.
TEST(Inspect, PublishedConfigGivesTheSpecificationsNumbers) {
  const Inspection i = inspect_config(test::published_config());
  EXPECT_EQ(i.total.parameters, 427040140160);
  EXPECT_EQ(parameters(i, ParameterGroup::routed_experts), 413122166784);
  EXPECT_EQ(parameters(i, ParameterGroup::attention), 6417285120);
  EXPECT_EQ(parameters(i, ParameterGroup::shared_experts), 3227516928);
  EXPECT_EQ(parameters(i, ParameterGroup::lm_head), 1229193216);
  EXPECT_EQ(parameters(i, ParameterGroup::embedding), 1229193216);
  EXPECT_EQ(parameters(i, ParameterGroup::dense_mlp), 679477248);
  EXPECT_EQ(parameters(i, ParameterGroup::vision_tower), 631185920);
  EXPECT_EQ(parameters(i, ParameterGroup::projector), 234381312);
  EXPECT_EQ(parameters(i, ParameterGroup::indexer), 224133120);
  EXPECT_EQ(parameters(i, ParameterGroup::router), 44833920);
  EXPECT_EQ(parameters(i, ParameterGroup::norms), 773376);
  EXPECT_EQ(i.active.total, 24732499968);
  EXPECT_EQ(i.active.with_embedding, 24732499968 + 1229193216);
  EXPECT_EQ(i.text_tensors, 22893);
  EXPECT_EQ(i.vision_tensors, 523);
  EXPECT_EQ(i.total.tensors, 23416);
  ASSERT_EQ(i.caches.size(), 4u);
  EXPECT_EQ(i.caches[0].bytes_per_token, 137472);           // bf16, bf16
  EXPECT_EQ(i.caches[2].bytes_per_token, 74 * 1024 + 256);  // fp8 K/V: 74.25 KiB
  EXPECT_EQ(i.caches[3].bytes_per_token, 67 * 1024 + 128);  // fp8 both: 67.125 KiB
  ASSERT_EQ(i.layers.size(), 2u);
  EXPECT_EQ(i.layers[0].last, 2);
  EXPECT_EQ(i.layers[1].first, 3);
  EXPECT_EQ(i.layers[1].last, 59);
}

std::int64_t variant(const Inspection& inspection, const std::string& name) {
  const auto found = std::find_if(inspection.variants.begin(), inspection.variants.end(),
                                  [&](const Variant& v) { return v.name == name; });
  return found == inspection.variants.end() ? -1 : found->bytes;
}

TEST(Inspect, BytesOfTheReleasedVariants) {
  const Inspection i = inspect_config(test::published_config());
  EXPECT_EQ(variant(i, "bf16"), 854172958720);
  EXPECT_NEAR(static_cast<double>(variant(i, "mxfp8")), 443.7e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(variant(i, "nvfp4 experts, rest mxfp8")), 250.1e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(variant(i, "mxfp4 experts, rest bf16")), 247.4e9, 0.05e9);
}

TEST(Inspect, EveryLayerSparseCostsMoreCache) {
  Json config = test::published_config();
  std::vector<int> all(60, 1);
  config["text_config"]["sparse_attention_config"]["sparse_attention_freq"] = all;
  config["text_config"]["sparse_attention_config"]["sparse_disable_index_value"] = all;
  const Inspection i = inspect_config(config);
  EXPECT_EQ(i.caches[0].bytes_per_token, 138240);
  EXPECT_EQ(i.caches[3].bytes_per_token, 69120);
}

TEST(Inspect, ReusingLayersKeepNoIndex) {
  Json config = test::published_config();
  config["text_config"].update({{"use_index_cache", true}, {"index_topk_freq", 4}});
  EXPECT_EQ(inspect_config(config).caches[0].bytes_per_token, 137472 - 42 * 256);
}

TEST(Inspect, PromisedFormatsOfAConfigAlone) {
  Json config = test::published_config();
  config["quantization_config"] = {{"quant_method", "mxfp8"}, {"ignored_layers", {"lm_head", "model.embed_tokens"}}};
  const Inspection i = inspect_config(config);
  EXPECT_EQ(i.quantization, "mxfp8");
  EXPECT_EQ(i.formats.at("f32").matrices, 57);
  EXPECT_EQ(i.formats.at("bf16").matrices, 2);
  EXPECT_EQ(i.formats.at("mxfp8").matrices, 57 * 128 * 3 + 57 * 3 + 9 + 57 * 2 + 240);
}

TEST(Inspect, TextAndJsonOfTheConfig) {
  const Inspection i = inspect_config(test::published_config());
  const std::string text = cli::inspection_text(i);
  for (const char* words :
       {"427,040,140,160", "413,122,166,784", "24,732,499,968", "137,472", "74.250 KiB", "22,893 text and 523 vision",
        "not counted: embedding table", "0-2     dense attention; dense MLP of 12288",
        "3-59    sparse attention, 16 blocks of 128", "layers.*.block_sparse_moe.experts.*.w1"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  const Json json = Json::parse(cli::inspection_json(i));
  EXPECT_EQ(json["kind"], "config");
  EXPECT_EQ(json["parameters"]["total"], 427040140160);
  EXPECT_EQ(json["parameters"]["groups"]["routed experts"], 413122166784);
  EXPECT_EQ(json["parameters"]["active_per_token"], 24732499968);
  EXPECT_EQ(json["cache_bytes_per_token"][0]["bytes"], 137472);
  EXPECT_EQ(json["tensors"]["text"], 22893);
  EXPECT_TRUE(json["problems"].empty());
}

class InspectCheckpoint : public ::testing::Test {
 protected:
  InspectCheckpoint() : tensors_(test::seeded_tensors(parse_config(test::small_config().dump(), "test"), 4)) {}

  Inspection run(bool deep) {
    test::write_checkpoint(directory_.path(), test::small_config().dump(), tensors_, 2);
    return inspect(directory_.path(), deep);
  }

  test::FileTensor& tensor(const std::string& end) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name.ends_with(end); });
  }

  test::TemporaryDirectory directory_;
  std::vector<test::FileTensor> tensors_;
};

TEST_F(InspectCheckpoint, CountsWhatIsStored) {
  const Inspection i = run(false);
  EXPECT_TRUE(i.sound());
  EXPECT_TRUE(i.weights_read);
  EXPECT_EQ(i.stored_tensors, i.text_tensors);
  EXPECT_EQ(i.stored_tensors, static_cast<std::int64_t>(tensors_.size()));
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors_) bytes += static_cast<std::int64_t>(tensor.bytes.size());
  EXPECT_EQ(i.text_bytes, bytes);
  EXPECT_EQ(variant(i, "bf16"), bytes);
  EXPECT_GT(i.file_bytes, bytes);
  EXPECT_THAT(cli::inspection_text(i), HasSubstr("no problems (--deep reads the values too)"));
}

TEST_F(InspectCheckpoint, DeepReadsRanges) {
  std::fill_n(tensor("layers.1.self_attn.o_proj.weight").bytes.begin(), 3 * 512 * 2, std::byte(0));
  const Inspection i = run(true);
  EXPECT_TRUE(i.sound());
  const auto range = std::find_if(i.ranges.begin(), i.ranges.end(),
                                  [](const ValueRange& r) { return r.modules == "layers.*.self_attn.o_proj"; });
  ASSERT_NE(range, i.ranges.end());
  EXPECT_EQ(range->zero_rows, 3);
  EXPECT_EQ(range->values, 3 * 64 * 512);
  EXPECT_GT(range->highest, 0.07);  // the bound is sqrt(3 / 512) = 0.0765
  EXPECT_LE(range->highest, 0.0771);
  EXPECT_LT(range->lowest, -0.07);
  EXPECT_NEAR(range->mean_square * 512, 1.0, 0.03);
  EXPECT_THAT(cli::inspection_text(i), HasSubstr("values read"));
  EXPECT_EQ(Json::parse(cli::inspection_json(i))["values"].size(), i.ranges.size());
}

TEST_F(InspectCheckpoint, DeepFindsValuesThatAreNotFinite) {
  auto& weight = tensor("layers.2.block_sparse_moe.experts.1.w2.weight");
  weight.bytes[11] = std::byte(0x7f);
  weight.bytes[10] = std::byte(0xc0);
  auto& norm = tensor("layers.0.input_layernorm.weight");
  norm.bytes[1] = std::byte(0xff);
  norm.bytes[0] = std::byte(0x80);
  EXPECT_EQ(run(false).problems.all().size(), 1u);  // norms are read when a checkpoint is opened, matrices are not
  const Inspection i = run(true);
  ASSERT_EQ(i.problems.all().size(), 2u);
  const std::string text = cli::inspection_text(i);
  EXPECT_THAT(text,
              HasSubstr("layers.2.block_sparse_moe.experts.1.w2.weight: expected finite values, found 1 that are not"));
  EXPECT_THAT(text, HasSubstr("layers.0.input_layernorm.weight: expected finite values, found 1 that are not"));
}

TEST_F(InspectCheckpoint, ProblemsAreListedAndCountingGoesOn) {
  std::erase_if(tensors_, [](const auto& t) { return t.name.ends_with("layers.1.self_attn.k_proj.weight"); });
  const Inspection i = run(true);
  EXPECT_FALSE(i.sound());
  EXPECT_EQ(Json::parse(cli::inspection_json(i))["problems"].size(), 1u);
  EXPECT_THAT(cli::inspection_text(i),
              HasSubstr("problems: 1\n  language_model.model.layers.1.self_attn.k_proj.weight"));
}

TEST_F(InspectCheckpoint, UnreadableFilesStillShowTheConfig) {
  run(false);
  std::filesystem::resize_file(directory_ / "model-00002-of-00002.safetensors", 100);
  const Inspection i = inspect(directory_.path(), false);
  EXPECT_FALSE(i.sound());
  EXPECT_GT(i.total.parameters, 0);
  EXPECT_THAT(cli::inspection_text(i), HasSubstr("the weight files cannot be read"));
  EXPECT_THAT(cli::inspection_text(i), Not(HasSubstr("no problems")));
}

TEST(Inspect, DeepNeedsADirectory) {
  const test::TemporaryDirectory directory;
  test::write_file(directory / "config.json", test::small_config().dump());
  EXPECT_THROW(inspect(directory / "config.json", true), Error);
  EXPECT_THROW(inspect(directory / "absent", false), Error);
}

TEST(Inspect, QuantizedGoldens) {
  for (const char* name : {"mxfp8", "nvfp4", "mxfp4", "mxfp4_attnfp8"}) {
    SCOPED_TRACE(name);
    const Inspection i = inspect(std::string(M3_TEST_DATA) + "/goldens/" + name, true);
    EXPECT_TRUE(i.sound());
    std::int64_t bytes = 0;
    for (const auto& [format, count] : i.formats) bytes += count.bytes;
    EXPECT_LT(bytes, i.text_bytes);  // norms and single scales are not in it
    EXPECT_GT(bytes, i.text_bytes * 9 / 10);
  }
}

}  // namespace
}  // namespace m3
