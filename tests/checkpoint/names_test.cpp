#include "src/checkpoint/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace m3 {
namespace {

// Layers 0-2 dense, 3 and 4 with experts.
std::vector<LayerKind> layers() {
  std::vector<LayerKind> kinds(5);
  kinds[3] = kinds[4] = {.sparse_attention = true, .moe = true};
  return kinds;
}

struct Spelling {
  const char* stored;
  NameKind kind;
  const char* module;
  const char* part;
};

TEST(Names, EverySpellingComesToThePublishedOne) {
  using enum NameKind;
  const std::vector<Spelling> table = {
      // published
      {"language_model.model.embed_tokens.weight", text, "language_model.model.embed_tokens", "weight"},
      {"language_model.model.norm.weight", text, "language_model.model.norm", "weight"},
      {"language_model.lm_head.weight", text, "language_model.lm_head", "weight"},
      {"language_model.model.layers.3.self_attn.index_k_proj.weight", text,
       "language_model.model.layers.3.self_attn.index_k_proj", "weight"},
      {"language_model.model.layers.3.block_sparse_moe.e_score_correction_bias", text,
       "language_model.model.layers.3.block_sparse_moe", "e_score_correction_bias"},
      {"language_model.model.layers.3.block_sparse_moe.experts.7.w1.weight_scale_inv", text,
       "language_model.model.layers.3.block_sparse_moe.experts.7.w1", "weight_scale"},
      {"language_model.model.layers.3.block_sparse_moe.experts.7.w1.weight_scale_2", text,
       "language_model.model.layers.3.block_sparse_moe.experts.7.w1", "weight_scale_2"},
      {"language_model.model.layers.3.self_attn.k_proj.k_scale", text, "language_model.model.layers.3.self_attn.k_proj",
       "k_scale"},
      // prefixed, re-saved, text alone
      {"model.language_model.model.layers.0.mlp.up_proj.weight", text, "language_model.model.layers.0.mlp.up_proj",
       "weight"},
      {"model.language_model.lm_head.weight", text, "language_model.lm_head", "weight"},
      {"model.language_model.layers.3.self_attn.q_norm.weight", text, "language_model.model.layers.3.self_attn.q_norm",
       "weight"},
      {"model.language_model.embed_tokens.weight", text, "language_model.model.embed_tokens", "weight"},
      {"lm_head.weight", text, "language_model.lm_head", "weight"},
      {"model.layers.4.input_layernorm.weight", text, "language_model.model.layers.4.input_layernorm", "weight"},
      {"model.norm.weight", text, "language_model.model.norm", "weight"},
      {"model.language_model.layers.3.self_attn.indexer.q_proj.weight", text,
       "language_model.model.layers.3.self_attn.index_q_proj", "weight"},
      {"model.language_model.layers.3.self_attn.indexer.k_norm.weight", text,
       "language_model.model.layers.3.self_attn.index_k_norm", "weight"},
      {"model.language_model.layers.3.mlp.gate.weight", text, "language_model.model.layers.3.block_sparse_moe.gate",
       "weight"},
      {"model.language_model.layers.3.mlp.gate.e_score_correction_bias", text,
       "language_model.model.layers.3.block_sparse_moe", "e_score_correction_bias"},
      {"model.language_model.layers.3.mlp.experts.gate_up_proj", text,
       "language_model.model.layers.3.block_sparse_moe.experts.gate_up_proj", "weight"},
      {"model.language_model.layers.3.mlp.experts.down_proj_scale_inv", text,
       "language_model.model.layers.3.block_sparse_moe.experts.down_proj", "weight_scale"},
      {"model.language_model.layers.3.mlp.shared_experts.gate_up_proj.weight", text,
       "language_model.model.layers.3.block_sparse_moe.shared_experts.gate_up_proj", "weight"},
      {"model.language_model.layers.0.mlp.gate_up_proj.weight", text, "language_model.model.layers.0.mlp.gate_up_proj",
       "weight"},
      {"language_model.model.layers.0.block_sparse_moe.gate_proj.weight", text,
       "language_model.model.layers.0.mlp.gate_proj", "weight"},
      {"model.layers.3.block_sparse_moe.experts.2.down_proj.scale", text,
       "language_model.model.layers.3.block_sparse_moe.experts.2.w2", "weight_scale"},
      // names that must not be taken for others
      {"language_model.model.layers.3.mlp.gate_proj.weight", text, "language_model.model.layers.3.mlp.gate_proj",
       "weight"},
      {"language_model.model.layers.0.mlp.gate.weight", text, "language_model.model.layers.0.mlp.gate", "weight"},
      {"language_model.model.layers.9.mlp.gate.weight", text, "language_model.model.layers.9.mlp.gate", "weight"},
      // vision
      {"vision_tower.vision_model.embeddings.patch_embedding.weight", vision,
       "vision_tower.vision_model.embeddings.patch_embedding", "weight"},
      {"model.vision_tower.embeddings.proj.weight", vision, "vision_tower.vision_model.embeddings.patch_embedding",
       "weight"},
      {"model.vision_tower.pre_layrnorm.bias", vision, "vision_tower.vision_model.pre_layrnorm", "bias"},
      {"model.vision_tower.layers.31.mlp.fc1.bias", vision, "vision_tower.vision_model.encoder.layers.31.mlp.fc1",
       "bias"},
      {"vision_tower.vision_model.encoder.layers.0.block_sparse_moe.fc2.weight", vision,
       "vision_tower.vision_model.encoder.layers.0.mlp.fc2", "weight"},
      {"model.multi_modal_projector.merge_linear_2.bias", vision, "patch_merge_mlp.linear_2", "bias"},
      {"model.patch_merge_mlp.linear_1.weight", vision, "patch_merge_mlp.linear_1", "weight"},
      {"multi_modal_projector.linear_1.weight", vision, "multi_modal_projector.linear_1", "weight"},
      // skipped, drafts, neither
      {"mtp.layers.0.eh_proj.weight", ignored, "", ""},
      {"model.mtp.layers.0.enorm.weight", ignored, "", ""},
      {"language_model.model.mtp.layers.0.enorm.weight", ignored, "", ""},
      {"fc.weight", draft, "", ""},
      {"midlayer.self_attn.q_proj.weight", draft, "", ""},
      {"language_model.model.dspark.fc.weight", draft, "", ""},
      {"model.dspark.markov_head.markov_w1", draft, "", ""},
      {"layers.0.self_attn.q_proj.weight", unknown, "", ""},
      {"language_model.model.layers.03.input_layernorm.weight", unknown, "", ""},
      {"language_model.model.layers.x.input_layernorm.weight", unknown, "", ""},
      {"language_model", unknown, "", ""},
      {"lm_head", unknown, "", ""},
      {"model", unknown, "", ""},
      {"", unknown, "", ""},
      {"..", unknown, "", ""},
      {"language_model.model.layers..weight", unknown, "", ""},
      {"my_language_model.model.norm.weight", unknown, "", ""},
  };
  for (const Spelling& spelling : table) {
    SCOPED_TRACE(spelling.stored);
    const TensorName name = canonical_name(spelling.stored, layers());
    EXPECT_EQ(static_cast<int>(name.kind), static_cast<int>(spelling.kind));
    EXPECT_EQ(name.module, spelling.module);
    EXPECT_EQ(name.part, spelling.part);
  }
}

TEST(Names, ModulesOfQuantisationLists) {
  EXPECT_EQ(canonical_module("lm_head", layers()), "language_model.lm_head");
  EXPECT_EQ(canonical_module("model.embed_tokens", layers()), "language_model.model.embed_tokens");
  EXPECT_EQ(canonical_module("model.layers.3.mlp", layers()), "language_model.model.layers.3.block_sparse_moe");
  EXPECT_EQ(canonical_module("model.layers.3.block_sparse_moe.gate", layers()),
            "language_model.model.layers.3.block_sparse_moe.gate");
  EXPECT_EQ(canonical_module("vision_tower", layers()), "vision_tower");
  EXPECT_EQ(canonical_module("something.else", layers()), "something.else");
}

TEST(Names, Patterns) {
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("*self_attn.q_proj", "layers.1.self_attn.q_proj"));
  EXPECT_FALSE(matches_pattern("*self_attn.q_proj", "layers.1.self_attn.index_q_proj"));
  EXPECT_TRUE(matches_pattern("layers.*.mlp.*", "layers.12.mlp.gate_proj"));
  EXPECT_FALSE(matches_pattern("layers.*.mlp.*", "layers.12.mlp"));
  EXPECT_TRUE(matches_pattern("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches_pattern("a*b*c", "aXbYbZ"));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_TRUE(matches_pattern("**", "a"));
}

}  // namespace
}  // namespace m3
