#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/loader.h"
#include "src/checkpoint/text_layout.h"
#include "src/checkpoint/vision_layout.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_configs.h"

namespace m3 {
namespace {

using test::FileTensor;
using test::TemporaryDirectory;
using ::testing::HasSubstr;
using Tensors = std::vector<FileTensor>;

const std::string layer1 = "language_model.model.layers.1.";

Tensors small_tensors() { return test::seeded_tensors(parse_config(test::small_config().dump(), "test"), 1); }

FileTensor& tensor_named(Tensors& tensors, const std::string& name) {
  for (FileTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

void remove_named(Tensors& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const FileTensor& tensor) { return tensor.name == name; });
}

std::string open_error(const Tensors& tensors, const nlohmann::json& config = test::small_config()) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), config.dump(), tensors);
  try {
    Checkpoint::open(directory.path());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> all_values(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.columns));
  for (std::int64_t row = 0; row < matrix.rows; ++row) widen_row(matrix, row, values.data() + row * matrix.columns);
  return values;
}

// Every weight of two checkpoints, compared as numbers.
class Collect : public TextReader {
 public:
  std::map<std::string, std::vector<float>> values;
  void matrix(const LayoutEntry& entry, const WeightMatrix& weight, bool) override {
    values[entry.name()] = all_values(weight);
  }
  void vector(const LayoutEntry& entry, const std::vector<float>& vector) override { values[entry.name()] = vector; }
};

std::map<std::string, std::vector<float>> values_of(const Checkpoint& checkpoint) {
  Collect collect;
  read_text(checkpoint.config(), checkpoint.weights(), collect);
  return collect.values;
}

std::map<std::string, std::vector<float>> open_values(const Tensors& tensors, const nlohmann::json& config,
                                                      int shards = 1) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), config.dump(), tensors, shards);
  return values_of(Checkpoint::open(directory.path()));
}

TEST(Open, PublishedLayoutGivesTheSeededValues) {
  const TemporaryDirectory directory;
  test::write_seeded_checkpoint(directory.path(), test::small_config().dump(), 5, {}, 3);
  const Checkpoint opened = Checkpoint::open(directory.path());
  EXPECT_EQ(opened.config().num_hidden_layers, 3);
  const auto stored = values_of(opened);
  const Checkpoint random = Checkpoint::random(opened.config(), "bf16", 5);
  EXPECT_EQ(stored, values_of(random));
  EXPECT_EQ(stored.at("language_model.lm_head.weight").size(), 80u * 64);
  EXPECT_EQ(opened.text_weight_bytes(), random.text_weight_bytes());
  EXPECT_EQ(opened.weights().layers[1].router.format, WeightFormat::f32);
  EXPECT_TRUE(opened.weights().layers[0].index_q_proj.empty());
  EXPECT_FALSE(opened.weights().layers[1].index_q_proj.empty());
}

// Puts rows of one tensor behind another's, which is what fusing does.
FileTensor fuse(const std::string& name, std::vector<std::int64_t> shape, const std::vector<FileTensor>& parts) {
  FileTensor result;
  result.name = name;
  result.dtype = parts.front().dtype;
  result.shape = std::move(shape);
  for (const FileTensor& part : parts) result.bytes.insert(result.bytes.end(), part.bytes.begin(), part.bytes.end());
  return result;
}

Tensors resaved_tensors() {
  Tensors published = small_tensors();
  Tensors result;
  const auto take = [&](const std::string& name) { return tensor_named(published, name); };
  const auto rename = [&](const std::string& from, const std::string& to) {
    FileTensor tensor = take(from);
    tensor.name = to;
    result.push_back(tensor);
  };
  rename("language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight");
  rename("language_model.model.norm.weight", "model.language_model.norm.weight");
  rename("language_model.lm_head.weight", "lm_head.weight");
  for (int n = 0; n < 3; ++n) {
    const std::string from = "language_model.model.layers." + std::to_string(n) + ".";
    const std::string to = "model.language_model.layers." + std::to_string(n) + ".";
    for (const char* same : {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                             "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm"}) {
      rename(from + same + ".weight", to + same + ".weight");
    }
    if (n == 0) {
      result.push_back(fuse(to + "mlp.gate_up_proj.weight", {192, 64},
                            {take(from + "mlp.gate_proj.weight"), take(from + "mlp.up_proj.weight")}));
      rename(from + "mlp.down_proj.weight", to + "mlp.down_proj.weight");
      continue;
    }
    for (const char* part : {"q_proj", "k_proj", "q_norm", "k_norm"}) {
      rename(from + "self_attn.index_" + part + ".weight", to + "self_attn.indexer." + part + ".weight");
    }
    rename(from + "block_sparse_moe.gate.weight", to + "mlp.gate.weight");
    rename(from + "block_sparse_moe.e_score_correction_bias", to + "mlp.gate.e_score_correction_bias");
    std::vector<FileTensor> gate_up;
    std::vector<FileTensor> down;
    for (int e = 0; e < 4; ++e) {
      const std::string expert = from + "block_sparse_moe.experts." + std::to_string(e) + ".";
      gate_up.push_back(take(expert + "w1.weight"));
      gate_up.push_back(take(expert + "w3.weight"));
      down.push_back(take(expert + "w2.weight"));
    }
    result.push_back(fuse(to + "mlp.experts.gate_up_proj", {4, 64, 64}, gate_up));
    result.push_back(fuse(to + "mlp.experts.down_proj", {4, 64, 32}, down));
    const std::string shared = from + "block_sparse_moe.shared_experts.";
    result.push_back(fuse(to + "mlp.shared_experts.gate_up_proj.weight", {128, 64},
                          {take(shared + "gate_proj.weight"), take(shared + "up_proj.weight")}));
    rename(shared + "down_proj.weight", to + "mlp.shared_experts.down_proj.weight");
  }
  return result;
}

TEST(Open, ResavedNamesAndFusedTensorsGiveTheSameWeights) {
  const auto published = open_values(small_tensors(), test::small_config());
  EXPECT_EQ(open_values(resaved_tensors(), test::resaved_config()), published);
  EXPECT_EQ(open_values(resaved_tensors(), test::resaved_config(), 4), published);
}

TEST(Open, OtherSpellingsGiveTheSameWeights) {
  const auto published = open_values(small_tensors(), test::small_config());
  Tensors prefixed = small_tensors();
  for (FileTensor& tensor : prefixed) tensor.name = "model." + tensor.name;
  EXPECT_EQ(open_values(prefixed, test::small_config()), published);

  Tensors quirk = small_tensors();
  for (FileTensor& tensor : quirk) {
    const std::string from = "language_model.model.layers.0.mlp.";
    if (tensor.name.starts_with(from)) {
      tensor.name = "language_model.model.layers.0.block_sparse_moe." + tensor.name.substr(from.size());
    }
  }
  EXPECT_EQ(open_values(quirk, test::small_config()), published);

  Tensors text_only = small_tensors();
  for (FileTensor& tensor : text_only) tensor.name = tensor.name.substr(std::string("language_model.").size());
  nlohmann::json flat = test::resaved_config()["text_config"];
  flat["architectures"] = {"MiniMaxM3VLForCausalLM"};
  EXPECT_EQ(open_values(text_only, flat), published);
}

TEST(Open, ExtraPredictionModulesAreSkipped) {
  Tensors tensors = small_tensors();
  FileTensor extra = tensors.front();
  extra.name = "mtp.layers.0.eh_proj.weight";
  tensors.push_back(extra);
  EXPECT_EQ(open_error(tensors), "no error");
}

TEST(Open, MissingTensorIsNamedWithItsShape) {
  Tensors tensors = small_tensors();
  remove_named(tensors, layer1 + "self_attn.index_k_proj.weight");
  remove_named(tensors, layer1 + "block_sparse_moe.e_score_correction_bias");
  const std::string error = open_error(tensors);
  EXPECT_THAT(error, HasSubstr("2 problems"));
  EXPECT_THAT(error,
              HasSubstr(layer1 + "self_attn.index_k_proj.weight: expected a matrix [128, 64], found no such tensor"));
  EXPECT_THAT(error, HasSubstr("e_score_correction_bias: expected BF16, F16 or F32 [4], found no such tensor"));
}

TEST(Open, WrongShapesAndTypesAreNamed) {
  Tensors tensors = small_tensors();
  tensor_named(tensors, layer1 + "self_attn.q_proj.weight").shape = {64, 512};
  tensor_named(tensors, layer1 + "input_layernorm.weight").shape = {64, 1};
  tensor_named(tensors, "language_model.model.embed_tokens.weight").dtype = DType::i16;
  FileTensor& norm = tensor_named(tensors, layer1 + "self_attn.q_norm.weight");
  norm.dtype = DType::i16;
  const std::string error = open_error(tensors);
  EXPECT_THAT(error, HasSubstr("4 problems"));
  EXPECT_THAT(error, HasSubstr("q_proj.weight: expected BF16 [512, 64], found BF16 [64, 512]"));
  EXPECT_THAT(error, HasSubstr("input_layernorm.weight: expected BF16, F16 or F32 [64], found BF16 [64, 1]"));
  EXPECT_THAT(error, HasSubstr("embed_tokens.weight: expected BF16, F16 or F32 [80, 64], found I16 [80, 64]"));
  EXPECT_THAT(error, HasSubstr("q_norm.weight: expected BF16, F16 or F32 [128], found I16 [128]"));
}

TEST(Open, TwentyProblemsAreListedThenCounted) {
  Tensors tensors = small_tensors();
  std::erase_if(tensors, [](const FileTensor& tensor) { return tensor.name.find(".experts.") != std::string::npos; });
  const std::string error = open_error(tensors);
  EXPECT_THAT(error, HasSubstr("24 problems"));  // 2 layers, 4 experts, 3 matrices
  EXPECT_THAT(error, HasSubstr("and 4 more"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 21);
}

TEST(Open, UnexplainedTensorsAreNamed) {
  Tensors tensors = small_tensors();
  for (const char* name : {"language_model.model.layers.1.self_attn.q_proj.bias",
                           "language_model.model.layers.0.self_attn.index_q_proj.weight",
                           "language_model.model.layers.3.input_layernorm.weight",
                           "vision_tower.vision_model.pre_layrnorm.weight", "dspark.fc.weight", "who.knows"}) {
    FileTensor extra;
    extra.name = name;
    extra.shape = {2};
    extra.bytes.resize(4);
    tensors.push_back(extra);
  }
  const std::string error = open_error(tensors);
  EXPECT_THAT(error, HasSubstr("6 problems"));
  EXPECT_THAT(error, HasSubstr("q_proj.bias: expected no such tensor, found BF16 [2]"));
  EXPECT_THAT(error, HasSubstr("dspark.fc.weight: expected no such tensor, found a draft model's tensor, BF16 [2]"));
}

TEST(Open, TwoSpellingsOfOneTensor) {
  Tensors tensors = small_tensors();
  FileTensor copy = tensor_named(tensors, "language_model.lm_head.weight");
  copy.name = "lm_head.weight";
  tensors.push_back(copy);
  EXPECT_THAT(open_error(tensors), HasSubstr("one tensor of this meaning"));
}

TEST(Open, TiedEmbeddings) {
  nlohmann::json config = test::small_config();
  config["text_config"]["tie_word_embeddings"] = true;
  Tensors tensors = small_tensors();
  EXPECT_THAT(open_error(tensors, config), HasSubstr("the embedding's own values"));
  tensor_named(tensors, "language_model.lm_head.weight").bytes =
      tensor_named(tensors, "language_model.model.embed_tokens.weight").bytes;
  EXPECT_EQ(open_error(tensors, config), "no error");
  remove_named(tensors, "language_model.lm_head.weight");
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), config.dump(), tensors);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(checkpoint.weights().lm_head.values, checkpoint.weights().embed_tokens.values);
}

TEST(Open, CacheScales) {
  Tensors tensors = small_tensors();
  const auto scalar = [&](const std::string& name, float value) {
    FileTensor tensor;
    tensor.name = layer1 + "self_attn." + name;
    tensor.dtype = DType::f32;
    tensor.bytes.resize(4);
    std::memcpy(tensor.bytes.data(), &value, 4);
    tensors.push_back(tensor);
  };
  scalar("k_proj.k_scale", 0.5f);
  scalar("v_proj.output_scale", 0.25f);
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), test::small_config().dump(), tensors);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(checkpoint.weights().layers[1].k_scale, 0.5f);
  EXPECT_EQ(checkpoint.weights().layers[1].v_scale, 0.25f);
  EXPECT_EQ(checkpoint.weights().layers[2].k_scale, 1.0f);
  scalar("k_proj.output_scale", 0.75f);
  EXPECT_THAT(open_error(tensors), HasSubstr("expected 0.5, the other cache scale of this layer, found 0.75"));
}

TEST(Open, MisalignedTensorsAreCopiedAlone) {
  Tensors tensors = small_tensors();
  FileTensor odd;
  odd.name = "mtp.one_byte";
  odd.dtype = DType::u8;
  odd.shape = {1};
  odd.bytes.resize(1);
  tensors.insert(tensors.begin(), odd);
  EXPECT_EQ(open_values(tensors, test::small_config()), open_values(small_tensors(), test::small_config()));
}

nlohmann::json with_vision(nlohmann::json config) {
  config["vision_config"] = {{"hidden_size", 16},       {"num_hidden_layers", 2}, {"num_attention_heads", 2},
                             {"intermediate_size", 24}, {"patch_size", 2},        {"num_channels", 3},
                             {"projection_dim", 64}};
  config["projector_hidden_size"] = 48;
  return config;
}

Tensors vision_tensors(const nlohmann::json& config) {
  Tensors tensors;
  for (const VisionEntry& entry : vision_layout(parse_config(config.dump(), "test"))) {
    FileTensor tensor;
    tensor.name = entry.name;
    tensor.shape = entry.shape;
    std::size_t bytes = 2;
    for (const std::int64_t size : entry.shape) bytes *= static_cast<std::size_t>(size);
    tensor.bytes.resize(bytes);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

TEST(Open, VisionTensorsAreValidatedAndSkipped) {
  const nlohmann::json config = with_vision(test::small_config());
  Tensors tensors = small_tensors();
  for (FileTensor& tensor : vision_tensors(config)) tensors.push_back(std::move(tensor));
  EXPECT_EQ(open_error(tensors, config), "no error");
  EXPECT_THAT(open_error(tensors), HasSubstr("expected no such tensor"));  // no vision_config: text alone
  tensor_named(tensors, "patch_merge_mlp.linear_1.weight").shape = {256, 48};
  remove_named(tensors, "vision_tower.vision_model.encoder.layers.1.mlp.fc2.bias");
  const std::string error = open_error(tensors, config);
  EXPECT_THAT(error, HasSubstr("2 problems"));
  EXPECT_THAT(error, HasSubstr("linear_1.weight: expected BF16, F16 or F32 [48, 256], found BF16 [256, 48]"));
  EXPECT_THAT(error, HasSubstr("fc2.bias: expected BF16, F16 or F32 [16], found no such tensor"));
}

TEST(Open, DraftCheckpointsAreRefusedByName) {
  Tensors draft(1);
  draft[0].name = "fc.weight";
  draft[0].shape = {1};
  draft[0].bytes.resize(2);
  const auto with_architecture = [](const char* name) {
    nlohmann::json config = test::small_config();
    config["architectures"] = {name};
    return config;
  };
  EXPECT_THAT(open_error(draft, with_architecture("LlamaForCausalLMEagle3")),
              HasSubstr("an EAGLE3 draft checkpoint (LlamaForCausalLMEagle3)"));
  EXPECT_THAT(open_error(draft, with_architecture("DSparkMiniMaxDraftModel")), HasSubstr("a DSpark draft checkpoint"));
  EXPECT_THAT(open_error(draft, with_architecture("Qwen3DSparkModel")), HasSubstr("a DSpark draft checkpoint"));
  EXPECT_THAT(open_error(draft), HasSubstr("a draft model's tensors"));
}

TEST(Open, NotADirectory) {
  const TemporaryDirectory directory;
  EXPECT_THROW(Checkpoint::open(directory / "nothing"), Error);
  EXPECT_THROW(Checkpoint::open(directory.path()), Error);  // no config.json
  test::write_file(directory / "config.json", test::small_config().dump());
  EXPECT_THROW(Checkpoint::open(directory / "config.json"), Error);
}

}  // namespace
}  // namespace m3
