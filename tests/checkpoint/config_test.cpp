#include "src/checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_configs.h"

namespace m3 {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

ModelConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }

std::string error_of(const std::string& text) {
  try {
    parse_config(text, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Json patched(Json config, const Json& patch) {
  config.merge_patch(patch);
  return config;
}

std::vector<Json> refusals() {
  return Json::parse(test::read_file(std::string(M3_TEST_DATA) + "/checkpoint/config_refusals.json"));
}

// One line of the table: a change to a good config, and the words that refuse it.
TEST(Config, EveryRefusalNamesTheKey) {
  ASSERT_GT(refusals().size(), 60u);
  for (const Json& refusal : refusals()) {
    SCOPED_TRACE(refusal["name"].get<std::string>());
    const std::string base = refusal.value("base", "small");
    const Json config = base == "published" ? test::published_config()
                        : base == "resaved" ? test::resaved_config()
                                            : test::small_config();
    ASSERT_EQ(error_of(config.dump()), "no error");
    const std::string error = error_of(patched(config, refusal["patch"]).dump());
    EXPECT_THAT(error, HasSubstr("config.json: "));
    EXPECT_THAT(error, HasSubstr(refusal["error"].get<std::string>()));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(Config, Published) {
  const ModelConfig config = parse(test::published_config());
  EXPECT_EQ(config.hidden_size, 6144);
  EXPECT_EQ(config.num_hidden_layers, 60);
  EXPECT_EQ(config.num_attention_heads, 64);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.intermediate_size, 3072);
  EXPECT_EQ(config.shared_intermediate_size, 3072);
  EXPECT_EQ(config.dense_intermediate_size, 12288);
  EXPECT_EQ(config.vocab_size, 200064);
  EXPECT_EQ(config.max_position_embeddings, 1048576);
  EXPECT_EQ(config.max_context(), 1048576);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_EQ(config.swiglu_alpha, 1.702f);
  EXPECT_EQ(config.swiglu_limit, 7.0f);
  EXPECT_EQ(config.swiglu_beta, 1.0f);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.num_local_experts, 128);
  EXPECT_EQ(config.num_experts_per_tok, 4);
  EXPECT_EQ(config.routed_scaling_factor, 2.0f);
  EXPECT_EQ(config.topk_blocks, 16);
  EXPECT_EQ(config.init_blocks, 0);
  EXPECT_EQ(config.local_blocks, 1);
  EXPECT_FALSE(config.yarn);
  EXPECT_FALSE(config.reuse.enabled);
  EXPECT_EQ(config.sparse_layers(), 57);
  EXPECT_EQ(config.moe_layers(), 57);
  EXPECT_FALSE(config.layers[2].sparse_attention || config.layers[2].moe);
  EXPECT_TRUE(config.layers[3].sparse_attention && config.layers[3].moe);
  ASSERT_TRUE(config.vision);
  EXPECT_EQ(config.vision->hidden_size, 1280);
  EXPECT_EQ(config.vision->projector_hidden_size, 6144);
  EXPECT_EQ(config.vision->head_dim(), 80);
  EXPECT_EQ(config.vision->patch_elements(), 1176);
  EXPECT_EQ(config.vision->layer_norm_eps, 1e-5f);
  EXPECT_EQ(config.vision->rope_theta, 10000);
  EXPECT_EQ(config.vision->segment_max_frames, 4);
  EXPECT_EQ(config.vision->image_token_id, 200025);
  EXPECT_EQ(config.vision->video_token_id, 200026);
}

TEST(Config, VisionInTheResavedSpelling) {
  Json config = test::published_config();
  config.erase("image_token_index");
  config.erase("video_token_index");
  config["image_token_id"] = 7;
  config["vision_config"].erase("rope_theta");
  config["vision_config"].erase("vision_segment_max_frames");
  config["vision_config"]["rope_parameters"] = {{"rope_type", "axial"}, {"rope_theta", 500.0}};
  const ModelConfig parsed = parse(config);
  EXPECT_EQ(parsed.vision->image_token_id, 7);
  EXPECT_EQ(parsed.vision->video_token_id, 200026);
  EXPECT_EQ(parsed.vision->rope_theta, 500);
  EXPECT_EQ(parsed.vision->segment_max_frames, 4);
  config["image_token_id"] = 300000;  // outside the vocabulary: no place for a picture
  EXPECT_EQ(parse(config).vision->image_token_id, -1);
}

bool same_layers(const ModelConfig& a, const ModelConfig& b) {
  return std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), [](LayerKind x, LayerKind y) {
    return x.moe == y.moe && x.sparse_attention == y.sparse_attention && x.reuses_blocks == y.reuses_blocks;
  });
}

TEST(Config, ResavedSpellingSaysTheSame) {
  const ModelConfig old = parse(test::small_config());
  const ModelConfig resaved = parse(test::resaved_config());
  EXPECT_TRUE(same_layers(old, resaved));
  EXPECT_EQ(resaved.topk_blocks, old.topk_blocks);
  EXPECT_EQ(resaved.local_blocks, 1);
  EXPECT_EQ(resaved.rope_theta, old.rope_theta);
  EXPECT_EQ(resaved.hidden_size, old.hidden_size);
  EXPECT_EQ(resaved.num_local_experts, old.num_local_experts);
}

TEST(Config, TextOnlySaveHasItsKeysAtTheTop) {
  Json flat = test::resaved_config()["text_config"];
  EXPECT_EQ(parse(flat).hidden_size, 64);
  flat["architectures"] = {"MiniMaxM3SparseForCausalLM"};
  EXPECT_EQ(parse(flat).hidden_size, 64);
}

TEST(Config, MissingKeysTakeTheDocumentedValues) {
  const Json absent = {{"text_config",
                        {{"swiglu_alpha", nullptr},
                         {"swiglu_limit", nullptr},
                         {"rms_norm_eps", nullptr},
                         {"max_position_embeddings", nullptr},
                         {"shared_intermediate_size", nullptr},
                         {"n_shared_experts", nullptr},
                         {"scoring_func", nullptr},
                         {"use_qk_norm", nullptr},
                         {"hidden_act", nullptr},
                         {"moe_layer_freq", nullptr}}}};
  const ModelConfig config = parse(patched(test::small_config(), absent));
  EXPECT_EQ(config.swiglu_alpha, 1.702f);
  EXPECT_EQ(config.swiglu_limit, 7.0f);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.max_position_embeddings, 524288);
  EXPECT_EQ(config.shared_intermediate_size, config.intermediate_size);
  EXPECT_EQ(config.moe_layers(), 3);
}

TEST(Config, SparseAttentionAbsentMeansDense) {
  EXPECT_EQ(
      parse(patched(test::small_config(), {{"text_config", {{"sparse_attention_config", nullptr}}}})).sparse_layers(),
      0);
  const Json no_list = {{"text_config", {{"sparse_attention_config", {{"sparse_attention_freq", nullptr}}}}}};
  EXPECT_EQ(parse(patched(test::small_config(), no_list)).sparse_layers(), 0);
  const Json off = {
      {"text_config",
       {{"sparse_attention_config", {{"use_sparse_attention", false}, {"sparse_attention_freq", {0, 0, 0}}}}}}};
  EXPECT_EQ(parse(patched(test::small_config(), off)).sparse_layers(), 0);
}

ModelConfig with_sparse(const Json& keys) {
  return parse(patched(test::small_config(), {{"text_config", {{"sparse_attention_config", keys}}}}));
}

TEST(Config, ForcedBlocks) {
  EXPECT_EQ(with_sparse({{"sparse_local_block", nullptr}}).local_blocks, 1);
  EXPECT_EQ(with_sparse({{"sparse_init_block", nullptr}}).init_blocks, 0);
  EXPECT_EQ(with_sparse({{"sparse_init_block", nullptr}, {"sparse_init_tokens", 129}}).init_blocks, 2);
  EXPECT_EQ(with_sparse({{"sparse_local_block", nullptr}, {"sparse_local_tokens", 128}}).local_blocks, 2);
  EXPECT_EQ(with_sparse({{"sparse_init_block", 1}, {"sparse_local_block", 2}}).init_blocks, 1);
}

TEST(Config, EveryLayerSparseAndBooleansAsSwitches) {
  const Json all = {{"sparse_attention_freq", {true, true, true}}, {"sparse_disable_index_value", {1, 1, 1}}};
  EXPECT_EQ(with_sparse(all).sparse_layers(), 3);
}

TEST(Config, Yarn) {
  const Json scaling = {{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 524288}};
  Json config = test::published_config();
  config["text_config"]["rope_scaling"] = scaling;
  config["text_config"]["max_position_embeddings"] = 524288;
  const ModelConfig plain = parse(config);
  ASSERT_TRUE(plain.yarn);
  EXPECT_EQ(plain.yarn->factor, 2.0);
  EXPECT_EQ(plain.yarn->beta_fast, 32);
  EXPECT_FALSE(plain.yarn->attention_factor);
  EXPECT_EQ(plain.max_context(), 1048576);

  Json resaved = test::resaved_config();
  resaved["text_config"]["rope_parameters"].update({{"rope_type", "yarn"},
                                                    {"factor", 4.0},
                                                    {"beta_slow", 2},
                                                    {"original_max_position_embeddings", 1024},
                                                    {"attention_factor", 1.25},
                                                    {"truncate", false}});
  const ModelConfig inside = parse(resaved);
  ASSERT_TRUE(inside.yarn);
  EXPECT_EQ(inside.yarn->beta_slow, 2);
  EXPECT_EQ(inside.yarn->attention_factor, 1.25);
  EXPECT_FALSE(inside.yarn->truncate);
}

ModelConfig with_reuse(const Json& keys) {
  Json config = test::published_config();
  config["text_config"].update(keys);
  return parse(config);
}

TEST(Config, ReuseCountsSparseLayers) {
  const ModelConfig config = with_reuse({{"use_index_cache", true}, {"index_topk_freq", 4}});
  EXPECT_TRUE(config.reuse.enabled);
  int computing = 0;
  for (int n = 3; n < 60; ++n) {
    const bool reuses = config.layers[static_cast<std::size_t>(n)].reuses_blocks;
    EXPECT_EQ(reuses, (n - 3) % 4 != 0) << n;
    computing += !reuses;
  }
  EXPECT_EQ(computing, 15);
}

TEST(Config, ReuseNeedsItsSwitch) {
  EXPECT_FALSE(with_reuse({{"index_topk_freq", 4}}).reuse.enabled);
  EXPECT_FALSE(with_reuse({{"use_index_cache", false}, {"index_topk_freq", 4}}).layers[4].reuses_blocks);
  EXPECT_FALSE(with_reuse({{"use_index_cache", true}}).reuse.enabled);
  EXPECT_FALSE(with_reuse({{"use_index_cache", true}, {"index_topk_freq", 1}}).reuse.enabled);
  EXPECT_FALSE(with_reuse({{"use_index_cache", true}, {"index_topk_freq", 0}}).reuse.enabled);
}

TEST(Config, ReusePatternAndOffset) {
  const ModelConfig pattern =
      with_reuse({{"use_index_cache", true}, {"index_topk_freq", 2}, {"index_topk_pattern", "FSSF"}});
  EXPECT_FALSE(pattern.layers[3].reuses_blocks);
  EXPECT_TRUE(pattern.layers[4].reuses_blocks);
  EXPECT_TRUE(pattern.layers[5].reuses_blocks);
  EXPECT_FALSE(pattern.layers[6].reuses_blocks);
  EXPECT_FALSE(pattern.layers[40].reuses_blocks);  // past the pattern: computes
  const ModelConfig offset =
      with_reuse({{"use_index_cache", true}, {"index_topk_freq", 2}, {"index_skip_topk_offset", 2}});
  EXPECT_FALSE(offset.layers[4].reuses_blocks);
  EXPECT_FALSE(offset.layers[5].reuses_blocks);
  EXPECT_TRUE(offset.layers[6].reuses_blocks);
}

TEST(Config, BrokenFiles) {
  EXPECT_THAT(error_of(""), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected a JSON object, found a list of 0"));
  EXPECT_THAT(error_of("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(R"({"model_type": "minimax_m3_vl", "model_type": "x"})"), HasSubstr("given twice"));
  EXPECT_THAT(error_of(R"({"a":)" + std::string(100000, '[')), HasSubstr("deeper than 64"));
  EXPECT_THAT(error_of(R"({"text_config": {"rms_norm_eps": 1e999}})"), HasSubstr("not valid JSON"));
  EXPECT_THROW(read_config("/nonexistent/config.json"), Error);
}

}  // namespace
}  // namespace m3
