// Stored number formats: told from dtypes and shapes, checked against quantization_config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/number_formats.h"
#include "src/checkpoint/checkpoint.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_configs.h"

namespace m3 {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using test::FileTensor;
using Tensors = std::vector<FileTensor>;

FileTensor make(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                const std::vector<std::uint8_t>& bytes) {
  FileTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  for (const std::uint8_t byte : bytes) tensor.bytes.push_back(std::byte(byte));
  return tensor;
}

FileTensor floats(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
  FileTensor tensor = make(name, DType::f32, std::move(shape), {});
  tensor.bytes.resize(values.size() * 4);
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// Bytes that are no NaN in e4m3 and vary.
std::vector<std::uint8_t> pattern(std::int64_t count, unsigned step) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>((i * step) & 0xbf);
  return bytes;
}

// How one linear "X" of [rows, columns] is stored in a format: the tensors that replace X.weight.
using Storage = std::function<Tensors(const std::string& module, std::int64_t rows, std::int64_t columns)>;

Tensors mxfp8(const std::string& module, std::int64_t rows, std::int64_t columns, const std::string& scale) {
  return {make(module + ".weight", DType::f8_e4m3, {rows, columns}, pattern(rows * columns, 7)),
          make(module + "." + scale, DType::u8, {rows, columns / 32},
               std::vector<std::uint8_t>(static_cast<std::size_t>(rows * columns / 32), 120))};
}

Tensors store_mxfp8(const std::string& module, std::int64_t rows, std::int64_t columns) {
  return mxfp8(module, rows, columns, "weight_scale_inv");
}

Tensors store_mxfp4(const std::string& module, std::int64_t rows, std::int64_t columns) {
  return {make(module + ".weight", DType::u8, {rows, columns / 2}, pattern(rows * columns / 2, 11)),
          make(module + ".weight_scale", DType::u8, {rows, columns / 32},
               std::vector<std::uint8_t>(static_cast<std::size_t>(rows * columns / 32), 125))};
}

Tensors store_nvfp4(const std::string& module, std::int64_t rows, std::int64_t columns) {
  return {make(module + ".weight", DType::u8, {rows, columns / 2}, pattern(rows * columns / 2, 13)),
          make(module + ".weight_scale", DType::f8_e4m3, {rows, columns / 16}, pattern(rows * columns / 16, 3)),
          floats(module + ".weight_scale_2", {}, {0.125f}), floats(module + ".input_scale", {1}, {0.5f})};
}

Tensors store_packed_nvfp4(const std::string& module, std::int64_t rows, std::int64_t columns) {
  return {make(module + ".weight_packed", DType::u8, {rows, columns / 2}, pattern(rows * columns / 2, 13)),
          make(module + ".weight_scale", DType::f8_e4m3, {rows, columns / 16}, pattern(rows * columns / 16, 3)),
          floats(module + ".weight_global_scale", {1}, {8.0f}), floats(module + ".input_global_scale", {1}, {3.0f})};
}

Tensors store_fp8_rows(const std::string& module, std::int64_t rows, std::int64_t columns) {
  std::vector<float> scales(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25f * static_cast<float>(i + 1);
  return {make(module + ".weight", DType::f8_e4m3, {rows, columns}, pattern(rows * columns, 5)),
          floats(module + ".weight_scale", {rows}, scales)};
}

Tensors store_fp8_tensor(const std::string& module, std::int64_t rows, std::int64_t columns) {
  return {make(module + ".weight", DType::f8_e4m3, {rows, columns}, pattern(rows * columns, 5)),
          floats(module + ".weight_scale", {}, {0.5f}), floats(module + ".input_scale", {}, {2.0f})};
}

bool is_routed(const std::string& name) { return name.find(".experts.") != std::string::npos; }

bool is_linear(const std::string& name) {
  if (!name.ends_with("proj.weight") && !is_routed(name)) return false;
  return name.find("layers.") != std::string::npos;
}

// The small checkpoint with every linear that `chosen` picks stored otherwise.
Tensors stored(const std::function<bool(const std::string&)>& chosen, const Storage& storage) {
  Tensors result;
  for (FileTensor& tensor : test::seeded_tensors(parse_config(test::small_config().dump(), "test"), 1)) {
    if (!chosen(tensor.name)) {
      result.push_back(std::move(tensor));
      continue;
    }
    const std::string module = tensor.name.substr(0, tensor.name.size() - std::string(".weight").size());
    for (FileTensor& part : storage(module, tensor.shape[0], tensor.shape[1])) result.push_back(std::move(part));
  }
  return result;
}

Json with_quantization(const Json& quantization) {
  Json config = test::small_config();
  config["quantization_config"] = quantization;
  return config;
}

const Json mxfp8_config = {
    {"quant_method", "mxfp8"},
    {"activation_scheme", "dynamic"},
    {"weight_block_size", {1, 32}},
    {"ignored_layers",
     {"lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp",
      "model.layers.1.block_sparse_moe.gate", "language_model.model.layers.2.block_sparse_moe.gate"}}};

Json m31_config() {
  Json config = mxfp8_config;
  config.update({{"moe_quant_algo", "nvfp4"},
                 {"moe_quant_format", "nvfp4-pack-quantized"},
                 {"group_size", 16},
                 {"kv_cache_quant_algo", "FP8"},
                 {"attention_quant_algo", "FP8"},
                 {"index_k_quant_type", "nvfp4"}});
  return config;
}

Json quark_config() {
  const Json fp4 = {
      {"weight", {{"dtype", "fp4"}, {"qscheme", "per_group"}, {"group_size", 32}, {"scale_format", "e8m0"}}},
      {"input_tensors", {{"dtype", "fp4"}}}};
  const Json fp8 = {{"weight", {{"dtype", "fp8_e4m3"}, {"qscheme", "per_channel"}}}};
  return {{"quant_method", "quark"},
          {"global_quant_config", fp4},
          {"layer_quant_config", {{"*self_attn.q_proj", fp8}, {"*self_attn.o_proj", fp8}}},
          {"layer_type_quant_config", Json::object()},
          {"exclude", {"lm_head", "model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.down_proj", "re:nothing"}}};
}

Json modelopt_config() {
  Json layers = Json::object();
  for (const FileTensor& tensor : test::seeded_tensors(parse_config(test::small_config().dump(), "test"), 1)) {
    if (!is_linear(tensor.name)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - std::string(".weight").size());
    layers[module] =
        is_routed(module) ? Json{{"quant_algo", "NVFP4"}, {"group_size", 16}} : Json{{"quant_algo", "MXFP8"}};
  }
  return {{"quant_method", "modelopt"},
          {"quant_algo", "MIXED_PRECISION"},
          {"kv_cache_quant_algo", nullptr},
          {"exclude_modules", {"lm_head", "model.embed_tokens"}},
          {"quantized_layers", layers}};
}

Checkpoint open(const Tensors& tensors, const Json& config) {
  const test::TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), config.dump(), tensors);
  return Checkpoint::open(directory.path());  // the mappings outlive the directory entries
}

std::string open_error(const Tensors& tensors, const Json& config) {
  try {
    open(tensors, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

float value(const WeightMatrix& matrix, std::int64_t row, std::int64_t column) {
  std::vector<float> values(static_cast<std::size_t>(matrix.columns));
  widen_row(matrix, row, values.data());
  return values[static_cast<std::size_t>(column)];
}

TEST(Formats, Mxfp8UnderBothScaleNames) {
  for (const char* scale : {"weight_scale_inv", "weight_scale"}) {
    const auto storage = [&](const std::string& m, std::int64_t n, std::int64_t k) { return mxfp8(m, n, k, scale); };
    const Checkpoint checkpoint = open(stored(is_linear, storage), with_quantization(mxfp8_config));
    const WeightMatrix& weight = checkpoint.weights().layers[1].experts[3].down;
    ASSERT_EQ(weight.format, WeightFormat::mxfp8);
    EXPECT_EQ(weight.rows, 64);
    EXPECT_EQ(weight.columns, 32);
    // Row 2, column 5: element 69 of the pattern, times 2^(120 - 127).
    EXPECT_EQ(value(weight, 2, 5), e4m3_to_float(static_cast<std::uint8_t>((69 * 7) & 0xbf)) / 128);
  }
}

TEST(Formats, NvidiaMixture) {
  Tensors tensors = stored(is_routed, store_nvfp4);
  Tensors all;
  for (FileTensor& tensor : tensors) {
    if (!is_linear(tensor.name) || is_routed(tensor.name)) {
      all.push_back(std::move(tensor));
      continue;
    }
    const std::string module = tensor.name.substr(0, tensor.name.size() - std::string(".weight").size());
    for (FileTensor& part : store_mxfp8(module, tensor.shape[0], tensor.shape[1])) all.push_back(std::move(part));
  }
  const Checkpoint checkpoint = open(all, with_quantization(modelopt_config()));
  const WeightMatrix& expert = checkpoint.weights().layers[2].experts[0].gate;
  ASSERT_EQ(expert.format, WeightFormat::nvfp4);
  EXPECT_EQ(checkpoint.weights().layers[2].q_proj.format, WeightFormat::mxfp8);
  // Row 1, columns 4 and 5: byte 34 of the codes, low nibble first; scale 4 of the pattern.
  const auto byte = static_cast<std::uint8_t>((34 * 13) & 0xbf);
  const float scale = e4m3_to_float(static_cast<std::uint8_t>((4 * 3) & 0xbf)) * 0.125f;
  EXPECT_EQ(value(expert, 1, 4), e2m1_to_float(byte & 15) * scale);
  EXPECT_EQ(value(expert, 1, 5), e2m1_to_float(byte >> 4) * scale);
}

TEST(Formats, PackedNvfp4DividesByItsGlobalScale) {
  Tensors all = stored(is_routed, store_packed_nvfp4);
  Tensors mixed;
  for (FileTensor& tensor : all) {
    if (!is_linear(tensor.name) || is_routed(tensor.name)) {
      mixed.push_back(std::move(tensor));
      continue;
    }
    const std::string module = tensor.name.substr(0, tensor.name.size() - std::string(".weight").size());
    for (FileTensor& part : store_mxfp8(module, tensor.shape[0], tensor.shape[1])) mixed.push_back(std::move(part));
  }
  const Checkpoint checkpoint = open(mixed, with_quantization(m31_config()));
  const WeightMatrix& expert = checkpoint.weights().layers[1].experts[1].up;
  ASSERT_EQ(expert.format, WeightFormat::nvfp4);
  EXPECT_EQ(expert.tensor_scale, 0.125f);
  // Plain MXFP8 is not what M3.1's config promises of experts.
  EXPECT_THAT(open_error(stored(is_linear, store_mxfp8), with_quantization(m31_config())),
              HasSubstr("experts.0.w1.weight: expected nvfp4, as quantization_config says, found mxfp8"));
}

TEST(Formats, QuarkMxfp4WithFp8Attention) {
  Tensors tensors = stored(is_routed, store_mxfp4);
  Tensors all;
  for (FileTensor& tensor : tensors) {
    const bool q = tensor.name.ends_with("self_attn.q_proj.weight");
    if (!q && !tensor.name.ends_with("self_attn.o_proj.weight")) {
      all.push_back(std::move(tensor));
      continue;
    }
    const std::string module = tensor.name.substr(0, tensor.name.size() - std::string(".weight").size());
    const auto storage = q ? store_fp8_rows : store_fp8_tensor;
    for (FileTensor& part : storage(module, tensor.shape[0], tensor.shape[1])) all.push_back(std::move(part));
  }
  const Checkpoint checkpoint = open(all, with_quantization(quark_config()));
  const TextLayerWeights& layer = checkpoint.weights().layers[1];
  EXPECT_EQ(layer.experts[0].gate.format, WeightFormat::mxfp4);
  const auto byte = static_cast<std::uint8_t>((33 * 11) & 0xbf);
  EXPECT_EQ(value(layer.experts[0].gate, 1, 2), e2m1_to_float(byte & 15) / 4);
  ASSERT_EQ(layer.q_proj.format, WeightFormat::fp8);
  EXPECT_FALSE(layer.q_proj.quantized_activations);
  EXPECT_EQ(value(layer.q_proj, 3, 1), e4m3_to_float(static_cast<std::uint8_t>((193 * 5) & 0xbf)) * 1.0f);
  EXPECT_EQ(layer.o_proj.row_scales, nullptr);
  EXPECT_EQ(layer.o_proj.tensor_scale, 0.5f);
  EXPECT_EQ(layer.k_proj.format, WeightFormat::bf16);
}

TEST(Formats, PackedExpertsWithScales) {
  Tensors tensors;
  for (FileTensor& tensor : test::seeded_tensors(parse_config(test::small_config().dump(), "test"), 1)) {
    if (!is_routed(tensor.name)) tensors.push_back(std::move(tensor));
  }
  for (const char* layer : {"1", "2"}) {
    const std::string experts = std::string("model.language_model.layers.") + layer + ".mlp.experts.";
    tensors.push_back(make(experts + "gate_up_proj", DType::f8_e4m3, {4, 64, 64}, pattern(4 * 64 * 64, 7)));
    std::vector<std::uint8_t> scales;
    for (int i = 0; i < 4 * 64 * 2; ++i) scales.push_back(static_cast<std::uint8_t>(120 + i / 128));
    tensors.push_back(make(experts + "gate_up_proj_scale_inv", DType::u8, {4, 64, 2}, scales));
    tensors.push_back(make(experts + "down_proj", DType::f8_e4m3, {4, 64, 32}, pattern(4 * 64 * 32, 7)));
    tensors.push_back(
        make(experts + "down_proj_scale_inv", DType::u8, {4, 64, 1}, std::vector<std::uint8_t>(256, 127)));
  }
  Json config = with_quantization(mxfp8_config);
  config["quantization_config"]["ignored_layers"] = {"self_attn", "mlp", "shared_experts"};
  const Checkpoint checkpoint = open(tensors, config);
  const ExpertWeights& expert = checkpoint.weights().layers[1].experts[2];
  EXPECT_EQ(expert.gate.rows, 32);
  // Expert 2's gate rows are stored rows 128 … 159, its up rows 160 … 191; its scales are 2^(122 - 127).
  EXPECT_EQ(value(expert.gate, 1, 3), e4m3_to_float(static_cast<std::uint8_t>(((129 * 64 + 3) * 7) & 0xbf)) / 32);
  EXPECT_EQ(value(expert.up, 0, 40), e4m3_to_float(static_cast<std::uint8_t>(((160 * 64 + 40) * 7) & 0xbf)) / 32);
  EXPECT_EQ(value(expert.down, 5, 6), e4m3_to_float(static_cast<std::uint8_t>(((133 * 32 + 6) * 7) & 0xbf)));
}

// One linear stored wrongly in an otherwise good bf16 checkpoint, and what is said.
struct BadStorage {
  const char* what;
  Storage storage;
  const char* message;
};

TEST(Formats, WrongStorageIsNamed) {
  const auto f8 = DType::f8_e4m3;
  using V = std::vector<std::uint8_t>;
  const auto sized = [](std::int64_t count) { return V(static_cast<std::size_t>(count), 1); };
  const std::vector<BadStorage> table = {
      {"codes without scales",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", f8, {n, k}, sized(n * k))};
       },
       "a weight_scale or weight_scale_inv beside F8_E4M3 codes, found none"},
      {"4-bit codes without scales",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", DType::u8, {n, k / 2}, sized(n * k / 2))};
       },
       "a weight_scale beside 4-bit codes, found none"},
      {"scales of the wrong shape",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", f8, {n, k}, sized(n * k)),
                 make(m + ".weight_scale_inv", DType::u8, {n, 1}, sized(n))};
       },
       "q_proj.weight_scale_inv: expected U8 [512, 2], found U8 [512, 1]"},
      {"128 x 128 blocks",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", f8, {n, k}, sized(n * k)), floats(m + ".weight_scale_inv", {4, 1}, {1, 1, 1, 1})};
       },
       "expected U8 [512, 2] (mxfp8), F32 [512] (one a row) or F32 [] (one), found F32 [4, 1]"},
      {"bf16 scales",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", f8, {n, k}, sized(n * k)),
                 make(m + ".weight_scale", DType::bf16, {n}, sized(2 * n))};
       },
       "found BF16 [512]"},
      {"nvfp4 without its second scale",
       [&](auto& m, auto n, auto k) {
         Tensors parts = store_nvfp4(m, n, k);
         parts.resize(2);
         return parts;
       },
       "q_proj.weight: expected a weight_scale_2 beside it, found none"},
      {"nvfp4 with an infinite scale",
       [&](auto& m, auto n, auto k) {
         Tensors parts = store_nvfp4(m, n, k);
         parts[2] = floats(m + ".weight_scale_2", {}, {std::bit_cast<float>(0x7f800000u)});
         return parts;
       },
       "weight_scale_2: expected a finite number, not negative, found inf"},
      {"second scale of two elements",
       [&](auto& m, auto n, auto k) {
         Tensors parts = store_nvfp4(m, n, k);
         parts[2] = floats(m + ".weight_scale_2", {2}, {1, 1});
         return parts;
       },
       "weight_scale_2: expected F32 [] or [1], found F32 [2]"},
      {"global scale of zero",
       [&](auto& m, auto n, auto k) {
         Tensors parts = store_packed_nvfp4(m, n, k);
         parts[2] = floats(m + ".weight_global_scale", {1}, {0});
         return parts;
       },
       "weight_global_scale: expected a positive number, found 0"},
      {"mxfp4 with a second scale",
       [&](auto& m, auto n, auto k) {
         Tensors parts = store_mxfp4(m, n, k);
         parts.push_back(floats(m + ".weight_scale_2", {}, {1}));
         return parts;
       },
       "expected no such tensor beside a weight in mxfp4"},
      {"bf16 with a scale",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", DType::bf16, {n, k}, sized(2 * n * k)), floats(m + ".weight_scale", {}, {1})};
       },
       "expected no such tensor beside a weight in bf16"},
      {"weight and weight_packed",
       [&](auto& m, auto n, auto k) {
         Tensors parts = store_packed_nvfp4(m, n, k);
         parts.push_back(make(m + ".weight", DType::u8, {n, k / 2}, sized(n * k / 2)));
         return parts;
       },
       "either weight or weight_packed, found both"},
      {"e5m2",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".weight", DType::f8_e5m2, {n, k}, sized(n * k))};
       },
       "F8_E4M3 [512, 64] or U8 [512, 32], found F8_E5M2 [512, 64]"},
      {"GPTQ's tensors",
       [&](auto& m, auto n, auto k) -> Tensors {
         return {make(m + ".qweight", DType::i32, {k / 8, n}, sized(k * n / 2))};
       },
       "q_proj.qweight: expected no such tensor, found I32 [8, 512]"},
  };
  const std::string name = "language_model.model.layers.1.self_attn.q_proj.weight";
  for (const BadStorage& bad : table) {
    SCOPED_TRACE(bad.what);
    EXPECT_THAT(open_error(stored([&](const std::string& n) { return n == name; }, bad.storage), test::small_config()),
                HasSubstr(bad.message));
  }
}

TEST(Formats, ScalesThatAreNoNumbers) {
  const std::string name = "language_model.model.layers.1.self_attn.q_proj.weight";
  const auto one = [&](const std::string& n) { return n == name; };
  const auto storage = [](const std::string& module, std::int64_t rows, std::int64_t columns) {
    Tensors parts = store_mxfp8(module, rows, columns);
    parts[1].bytes[7] = std::byte(255);
    return parts;
  };
  Json config = with_quantization(quark_config());
  config["quantization_config"]["layer_quant_config"]["*self_attn.q_proj"]["weight"] = {
      {"dtype", "fp8_e4m3"}, {"qscheme", "per_group"}, {"group_size", 32}, {"scale_format", "e8m0"}};
  EXPECT_THAT(open_error(stored(one, storage), config),
              HasSubstr("q_proj.weight: expected scales that are numbers, found 1 that are not, the first in row 3"));
  EXPECT_EQ(open_error(stored(one, store_mxfp8), config), "no error");
}

TEST(Formats, ContradictionsWithTheConfig) {
  EXPECT_THAT(
      open_error(stored(is_linear, store_mxfp8), test::small_config()),
      HasSubstr("q_proj.weight: expected an unquantised weight, as there is no quantization_config, found mxfp8"));
  EXPECT_THAT(
      open_error(stored([](const std::string&) { return false; }, store_mxfp8), with_quantization(mxfp8_config)),
      HasSubstr("q_proj.weight: expected mxfp8, as quantization_config says, found bf16"));
  Json ignored = with_quantization(mxfp8_config);
  ignored["quantization_config"]["ignored_layers"].push_back("model.layers.1.self_attn.o_proj");
  const std::string error = open_error(stored(is_linear, store_mxfp8), ignored);
  EXPECT_THAT(error, HasSubstr("1 problem\n"));
  EXPECT_THAT(error, HasSubstr("layers.1.self_attn.o_proj.weight: expected an unquantised weight"));
  EXPECT_THAT(open_error(stored(is_linear, store_mxfp8), with_quantization(modelopt_config())),
              HasSubstr("experts.0.w1.weight: expected nvfp4"));
}

TEST(Formats, IndexerMayBeInItsOwnFormat) {
  const auto but_the_indexer = [](const std::string& name) {
    return is_linear(name) && name.find("index_") == std::string::npos;
  };
  EXPECT_EQ(open_error(stored(but_the_indexer, store_mxfp8), with_quantization(mxfp8_config)), "no error");
}

TEST(Formats, UnlistedQuantisationIsRefusedByName) {
  const std::vector<std::pair<Json, const char*>> table = {
      {{{"quant_method", "compressed-tensors"}},
       "quant_method is \"compressed-tensors\"; accepted: \"mxfp8\", \"modelopt\" or \"quark\""},
      {{{"quant_method", "auto-round"}}, "quant_method is \"auto-round\""},
      {{{"quant_method", "gptq"}, {"bits", 4}}, "quant_method is \"gptq\""},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}, "quant_method is \"fp8\""},
      {Json::object(), "quant_method is absent"},
      {{{"quant_method", "mxfp8"}, {"weight_block_size", {1, 16}}}, "weight_block_size is [1,16]; accepted: [1, 32]"},
      {{{"quant_method", "mxfp8"}, {"activation_scheme", "static"}},
       "activation_scheme is \"static\"; accepted: \"dynamic\""},
      {{{"quant_method", "mxfp8"}, {"moe_quant_algo", "MXFP4"}}, "moe_quant_algo is \"MXFP4\"; accepted: \"NVFP4\""},
      {{{"quant_method", "mxfp8"}, {"moe_quant_algo", "NVFP4"}, {"moe_quant_format", "pack"}},
       "moe_quant_format is \"pack\""},
      {{{"quant_method", "mxfp8"}, {"group_size", 32}}, "group_size is 32; accepted: 16"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "W4A8_AWQ"}}, "quant_algo is \"W4A8_AWQ\""},
      {{{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}}, "quantized_layers is missing"},
      {{{"quant_method", "modelopt"},
        {"quant_algo", "MIXED_PRECISION"},
        {"quantized_layers", {{"a.b", {{"quant_algo", "FP8"}}}}}},
       "quantized_layers.a.b.quant_algo is \"FP8\"; accepted: \"NVFP4\" or \"MXFP8\""},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 32}}, "group_size is 32; accepted: 16"},
      {{{"quant_method", "quark"}, {"global_quant_config", {{"weight", {{"dtype", "int4"}}}}}},
       "weight.dtype is \"int4\"; accepted: \"fp4\" or \"fp8_e4m3\""},
      {{{"quant_method", "quark"}, {"global_quant_config", {{"weight", {{"dtype", "fp4"}, {"group_size", 64}}}}}},
       "group_size is 64; accepted: 32"},
      {{{"quant_method", "quark"},
        {"global_quant_config", {{"weight", {{"dtype", "fp8_e4m3"}, {"qscheme", "per_block"}}}}}},
       "qscheme is \"per_block\""},
  };
  const Tensors tensors = stored(is_linear, store_mxfp8);
  for (const auto& [quantization, message] : table) {
    EXPECT_THAT(open_error(tensors, with_quantization(quantization)), HasSubstr(message));
  }
}

TEST(Formats, QuantisationFileBesideTheConfig) {
  const test::TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), test::small_config().dump(), stored(is_linear, store_mxfp8));
  Json quantization = {{"quant_algo", "MXFP8"}, {"exclude_modules", {"lm_head"}}};
  test::write_file(directory / "hf_quant_config.json",
                   Json{{"producer", {{"name", "x"}}}, {"quantization", quantization}}.dump());
  EXPECT_EQ(Checkpoint::open(directory.path()).weights().layers[0].dense.up.format, WeightFormat::mxfp8);
}

}  // namespace
}  // namespace m3
