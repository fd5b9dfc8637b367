// Softmax attention of one token and KV head over runs of cached keys, for both attention operations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "src/ops/host/arena.h"
#include "src/ops/host/pages.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

struct AttentionScratch {
  AttentionScratch(Arena& arena, std::int64_t group, std::int64_t context)
      : rows(arena.take<float>(page_tokens * head_dim)),
        sums(arena.take<float>(group * head_dim)),
        probabilities(arena.take<float>(group * context)) {}
  float* rows;           // [128, 128] keys, then values, of the page at hand
  float* sums;           // [group, 128]
  float* probabilities;  // [group, context]: scores, then exponentials
};

// The `group` query heads q [group, 128] that share a KV head, over run(0) .. run(runs - 1); at most
// `context` keys. Leaves Σ p·v / Σ p in scratch.sums. False where there is no key. (spec §3.7, §3.9)
template <typename Run>
bool attend(const LayerPages& pages, std::int64_t kv_head, const float* q, int group, float scale,
            const AttentionScratch& scratch, std::int64_t context, std::int64_t runs, const Run& run) {
  const auto for_each_run = [&](const PagePart& part, float part_scale, const auto& visit) {
    std::int64_t keys = 0;
    for (std::int64_t i = 0; i < runs; ++i) {
      const KeyRun at = run(i);
      if (at.empty()) continue;
      read_cache_rows(part, at.page, kv_head, at.first, at.last - at.first, part_scale, scratch.rows);
      visit(keys, at.last - at.first);
      keys += at.last - at.first;
    }
    return keys;
  };

  const std::int64_t keys = for_each_run(pages.k, pages.k_scale, [&](std::int64_t before, std::int64_t count) {
    for (int head = 0; head < group; ++head) {
      float* scores = scratch.probabilities + head * context + before;
      for (std::int64_t key = 0; key < count; ++key) {
        scores[key] = dot(q + head * head_dim, scratch.rows + key * head_dim, head_dim) * scale;
      }
    }
  });
  if (keys == 0) return false;

  for (int head = 0; head < group; ++head) {
    float* p = scratch.probabilities + head * context;
    const float highest = *std::max_element(p, p + keys);
    for (std::int64_t key = 0; key < keys; ++key) p[key] = std::exp(p[key] - highest);
  }
  std::fill(scratch.sums, scratch.sums + group * head_dim, 0.0f);
  for_each_run(pages.v, pages.v_scale, [&](std::int64_t before, std::int64_t count) {
    for (int head = 0; head < group; ++head) {
      const float* p = scratch.probabilities + head * context + before;
      float* out = scratch.sums + head * head_dim;
      for (std::int64_t key = 0; key < count; ++key) {
        const float* v = scratch.rows + key * head_dim;
        for (int i = 0; i < head_dim; ++i) out[i] += p[key] * v[i];
      }
    }
  });
  for (int head = 0; head < group; ++head) {
    const float total = sum(scratch.probabilities + head * context, keys);
    for (int i = 0; i < head_dim; ++i) scratch.sums[head * head_dim + i] /= total;
  }
  return true;
}

}  // namespace m3::ops::scalar
