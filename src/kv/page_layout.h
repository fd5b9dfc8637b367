// What a 128-token page consists of, for planner, transfers and kernels alike (spec §3.6, §7.4).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/number_formats.h"

namespace m3::kv {

enum class PartKind : std::uint8_t { k, v, index_k };

// One layer's part of a page. Part x of page p lies at `offset · pages + p · bytes` of a pool of `pages` pages:
// all pages of one part stand together.
struct Part {
  PartKind kind = PartKind::k;
  int layer = 0;
  DType dtype = DType::bf16;
  std::array<std::int64_t, 3> shape{};  // [heads, 128 tokens, 128]
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // sum of the bytes of the parts before
  int shard_axis = -1;      // 0: split by KV head across ranks; -1: replicated (index-K)
};

// What a layer caches.
struct LayerCache {
  int kv_heads = 0;
  bool index_k = false;
};

struct PageLayout {
  std::vector<Part> parts;      // by layer: K, V, then index-K where there is one
  std::int64_t page_bytes = 0;  // all layers
  std::string fingerprint;      // equal only where pages can be exchanged: model, dtypes, reuse schedule

  const Part* find(int layer, PartKind kind) const;  // null where the layer lacks the part
  // Cache bytes of one token, all layers; exact, since a page holds 128 tokens.
  std::int64_t token_bytes() const { return page_bytes / 128; }
};

// `model_fingerprint` names the weights and the reuse schedule. dtypes: f32 (judge only), bf16, f8_e4m3.
PageLayout make_page_layout(const std::vector<LayerCache>& layers, DType kv_dtype, DType index_dtype,
                            const std::string& model_fingerprint);

}  // namespace m3::kv
