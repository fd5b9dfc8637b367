#include "src/ops/host/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/error.h"

namespace m3::ops {

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

bool contains(std::span<const std::int32_t> ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Inserts in descending order of score. Callers come in ascending order of block, so equal scores keep the
// lower id.
void insert(ScoredBlock* candidates, int& count, int capacity, ScoredBlock entry) {
  if (count == capacity) {
    if (!(entry.score > candidates[count - 1].score)) return;
    --count;
  }
  int slot = count++;
  for (; slot > 0 && entry.score > candidates[slot - 1].score; --slot) candidates[slot] = candidates[slot - 1];
  candidates[slot] = entry;
}

}  // namespace

void choose_blocks(std::span<const float> scores, const SelectBlocks& args, ScoredBlock* candidates,
                   std::int32_t* ids) {
  const auto blocks = static_cast<std::int32_t>(scores.size());
  const std::int32_t local_begin = std::max(0, blocks - args.local_blocks);
  int count = 0;
  for (std::int32_t block = 0; block < std::min(args.init_blocks, local_begin) && count < args.topk; ++block) {
    ids[count++] = block;
  }
  for (std::int32_t block = local_begin; block < blocks && count < args.topk; ++block) ids[count++] = block;
  const int capacity = args.topk - count;
  int chosen = 0;
  if (capacity > 0) {
    for (std::int32_t block = args.init_blocks; block < local_begin; ++block) {
      if (!args.dropped.empty() && contains(args.dropped, block)) continue;
      const float score = scores[static_cast<std::size_t>(block)];
      insert(candidates, chosen, capacity, {std::isnan(score) ? lowest : score, block});
    }
  }
  for (int slot = 0; slot < chosen; ++slot) ids[count++] = candidates[slot].block;
  std::sort(ids, ids + count);
  std::fill(ids + count, ids + args.topk, -1);
}

void choose_experts(std::span<float> logits, std::span<const float> bias, int k, std::int32_t* ids, float* weights) {
  const auto experts = static_cast<std::int32_t>(logits.size());
  if (k > experts) fail_internal("choose_experts: {} of {} experts", k, experts);
  for (float& value : logits) value = 1.0f / (1.0f + std::exp(-value));
  for (int slot = 0; slot < k; ++slot) {
    std::int32_t best = -1;
    float best_score = lowest;
    for (std::int32_t expert = 0; expert < experts; ++expert) {
      if (contains({ids, static_cast<std::size_t>(slot)}, expert)) continue;
      float score = logits[static_cast<std::size_t>(expert)];
      if (!bias.empty()) score += bias[static_cast<std::size_t>(expert)];
      if (std::isnan(score)) score = lowest;
      if (best < 0 || score > best_score) {
        best = expert;
        best_score = score;
      }
    }
    ids[slot] = best;
  }
  std::sort(ids, ids + k);
  float sum = 0;
  for (int slot = 0; slot < k; ++slot) sum += logits[static_cast<std::size_t>(ids[slot])];
  for (int slot = 0; slot < k; ++slot) weights[slot] = logits[static_cast<std::size_t>(ids[slot])] / sum;
}

}  // namespace m3::ops
