// Weights made in memory: random ones, and online quantisation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/number_formats.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/scales.h"
#include "src/checkpoint/text_layout.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_configs.h"

namespace m3 {
namespace {

using ::testing::HasSubstr;

std::vector<float> row_of(const WeightMatrix& matrix, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(matrix.columns));
  widen_row(matrix, row, values.data());
  return values;
}

// Mean square of all elements times K: 1 for weights of variance 1/K.
double variance_times_columns(const WeightMatrix& matrix) {
  double sum = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (const float value : row_of(matrix, row)) sum += static_cast<double>(value) * value;
  }
  return sum / static_cast<double>(matrix.rows);
}

ModelConfig wider_config() {
  nlohmann::json config = test::small_config();
  config["text_config"]["hidden_size"] = 256;
  config["text_config"]["intermediate_size"] = 96;
  return parse_config(config.dump(), "test");
}

TEST(RandomWeights, EveryFormatHasItsVarianceAndNoNan) {
  struct Expected {
    const char* format;
    WeightFormat attention;
    WeightFormat routed;
  };
  using enum WeightFormat;
  for (const auto& [format, attention, routed] :
       {Expected{"bf16", bf16, bf16}, Expected{"mxfp8", mxfp8, mxfp8}, Expected{"mxfp4", bf16, mxfp4},
        Expected{"nvfp4", mxfp8, nvfp4}, Expected{"fp8", fp8, fp8}}) {
    SCOPED_TRACE(format);
    const Checkpoint checkpoint = Checkpoint::random(wider_config(), format, 3);
    const TextLayerWeights& layer = checkpoint.weights().layers[1];
    EXPECT_EQ(layer.q_proj.format, attention);
    EXPECT_EQ(layer.index_k_proj.format, attention);
    EXPECT_EQ(layer.shared.down.format, attention);
    EXPECT_EQ(checkpoint.weights().layers[0].dense.up.format, attention);
    EXPECT_EQ(layer.experts[0].down.format, routed);
    EXPECT_EQ(layer.router.format, f32);
    EXPECT_EQ(checkpoint.weights().lm_head.format, bf16);
    EXPECT_EQ(layer.e_score_correction_bias.size(), 4u);
    for (const WeightMatrix* matrix : {&layer.q_proj, &layer.o_proj, &layer.experts[3].gate, &layer.experts[1].down}) {
      EXPECT_NEAR(variance_times_columns(*matrix), 1.0, 0.1);
      EXPECT_EQ(scale_faults(*matrix).not_a_number, 0);
    }
  }
}

TEST(RandomWeights, DependOnSeedAndNameAlone) {
  const Checkpoint a = Checkpoint::random(wider_config(), "mxfp4", 3);
  const Checkpoint b = Checkpoint::random(wider_config(), "mxfp4", 3);
  const Checkpoint c = Checkpoint::random(wider_config(), "mxfp4", 4);
  const auto row = [](const Checkpoint& checkpoint, std::size_t expert) {
    return row_of(checkpoint.weights().layers[2].experts[expert].gate, 5);
  };
  EXPECT_EQ(row(a, 0), row(b, 0));
  EXPECT_NE(row(a, 0), row(c, 0));
  EXPECT_NE(row(a, 0), row(a, 1));
}

TEST(RandomWeights, Refusals) {
  EXPECT_THROW(Checkpoint::random(wider_config(), "int4", 1), Error);
  ModelConfig odd = wider_config();
  odd.intermediate_size = 40;
  try {
    Checkpoint::random(odd, "mxfp4", 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("w2.weight: 40 columns are no multiple of 32, which mxfp4 needs"));
  }
}

class OnlineQuantization : public ::testing::Test {
 protected:
  OnlineQuantization() { test::write_seeded_checkpoint(directory_.path(), test::small_config().dump(), 9); }

  Checkpoint open(std::vector<std::string> exclude = {}, const std::string& quantization = "ptpc_fp8") const {
    return Checkpoint::open(directory_.path(), {quantization, std::move(exclude)});
  }

  std::string error(std::vector<std::string> exclude, const std::string& quantization = "ptpc_fp8") const {
    try {
      open(std::move(exclude), quantization);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  test::TemporaryDirectory directory_;
};

TEST_F(OnlineQuantization, RowsAreScaledByTheirLargestValue) {
  const Checkpoint plain = Checkpoint::open(directory_.path());
  const Checkpoint quantized = open();
  const WeightMatrix& before = plain.weights().layers[1].q_proj;
  const WeightMatrix& after = quantized.weights().layers[1].q_proj;
  ASSERT_EQ(after.format, WeightFormat::fp8);
  EXPECT_TRUE(after.quantized_activations);
  EXPECT_EQ(after.rows, before.rows);
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{511}}) {
    const auto values = row_of(before, row);
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    const float scale = largest / 448.0f;
    EXPECT_EQ(after.row_scales[row], scale);
    const auto codes = row_of(after, row);
    for (std::size_t k = 0; k < values.size(); ++k) {
      EXPECT_EQ(codes[k], e4m3_to_float(float_to_e4m3(values[k] / scale)) * scale);
    }
  }
}

TEST_F(OnlineQuantization, CoversLinearsAndNothingElse) {
  const Checkpoint checkpoint = open();
  const TextWeights& weights = checkpoint.weights();
  EXPECT_EQ(weights.embed_tokens.format, WeightFormat::bf16);
  EXPECT_EQ(weights.lm_head.format, WeightFormat::bf16);
  EXPECT_EQ(weights.layers[1].router.format, WeightFormat::f32);
  for (const WeightMatrix* matrix :
       {&weights.layers[0].dense.gate, &weights.layers[1].index_q_proj, &weights.layers[1].index_k_proj,
        &weights.layers[2].o_proj, &weights.layers[2].experts[3].down, &weights.layers[2].shared.up}) {
    EXPECT_EQ(matrix->format, WeightFormat::fp8);
    EXPECT_TRUE(matrix->quantized_activations);
  }
  EXPECT_LT(checkpoint.text_weight_bytes(), Checkpoint::open(directory_.path()).text_weight_bytes());
}

TEST_F(OnlineQuantization, ExcludePatterns) {
  const Checkpoint checkpoint =
      open({"*.block_sparse_moe.experts.*", "model.layers.0.*", "layers.1.self_attn.o_proj.weight", "index_k_proj"});
  const TextWeights& weights = checkpoint.weights();
  EXPECT_EQ(weights.layers[1].experts[0].gate.format, WeightFormat::bf16);
  EXPECT_EQ(weights.layers[0].q_proj.format, WeightFormat::bf16);
  EXPECT_EQ(weights.layers[1].o_proj.format, WeightFormat::bf16);
  EXPECT_EQ(weights.layers[2].index_k_proj.format, WeightFormat::bf16);
  EXPECT_EQ(weights.layers[2].o_proj.format, WeightFormat::fp8);
  EXPECT_EQ(weights.layers[2].k_proj.format, WeightFormat::fp8);
  EXPECT_EQ(weights.layers[1].shared.gate.format, WeightFormat::fp8);
}

TEST_F(OnlineQuantization, Refusals) {
  EXPECT_THAT(error({}, "int8"), HasSubstr("unknown quantisation \"int8\"; accepted: ptpc_fp8"));
  EXPECT_THAT(error({"*.mlp.nothing"}), HasSubstr("exclude pattern \"*.mlp.nothing\" names no linear"));
  EXPECT_THAT(error({"*"}, ""), HasSubstr("exclude patterns were given without a quantisation"));
}

TEST_F(OnlineQuantization, ReportsProgress) {
  OpenOptions options;
  options.quantization = "ptpc_fp8";
  std::int64_t last = 0;
  std::int64_t total = 0;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  Checkpoint::open(directory_.path(), options);
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 100000);
}

TEST(OnlineQuantizationOfStored8Bits, Mxfp8IsConvertedAnd4BitsStay) {
  const std::string folder = std::string(M3_TEST_DATA) + "/goldens/";
  const Checkpoint mxfp8 = Checkpoint::open(folder + "mxfp8", {"ptpc_fp8", {}});
  EXPECT_EQ(mxfp8.weights().layers[0].q_proj.format, WeightFormat::fp8);
  const Checkpoint mixed = Checkpoint::open(folder + "mxfp4_attnfp8", {"ptpc_fp8", {}});
  EXPECT_EQ(mixed.weights().layers[0].q_proj.format, WeightFormat::fp8);
  EXPECT_TRUE(mixed.weights().layers[0].q_proj.quantized_activations);  // it has a scale a row
  for (const TextLayerWeights& layer : mixed.weights().layers) {
    for (const ExpertWeights& expert : layer.experts) EXPECT_EQ(expert.gate.format, WeightFormat::mxfp4);
  }
}

TEST_F(OnlineQuantization, ZeroRowsAndWeightsThatAreNotFinite) {
  auto tensors = test::seeded_tensors(parse_config(test::small_config().dump(), "test"), 9);
  for (test::FileTensor& tensor : tensors) {
    if (!tensor.name.ends_with("layers.1.self_attn.q_proj.weight")) continue;
    std::fill_n(tensor.bytes.begin(), 128, std::byte(0));
    test::write_checkpoint(directory_.path(), test::small_config().dump(), tensors);
    const Checkpoint checkpoint = open();
    EXPECT_EQ(row_of(checkpoint.weights().layers[1].q_proj, 0), std::vector<float>(64, 0.0f));
    tensor.bytes[0] = std::byte(0x80);
    tensor.bytes[1] = std::byte(0x7f);
  }
  test::write_checkpoint(directory_.path(), test::small_config().dump(), tensors);
  EXPECT_THAT(error({}), HasSubstr("layers.1.self_attn.q_proj.weight: a weight is not finite"));
}

}  // namespace
}  // namespace m3
