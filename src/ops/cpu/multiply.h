// The driver that linear, logits and route share: several weights on the same x, all threads.
#pragma once

#include "src/ops/cpu/cpu_backend.h"

namespace m3::ops::cpu {

// One thread's memory.
struct MultiplyPart {
  MultiplyPart(Arena& arena, const Kernels& kernels, std::int64_t columns)

      : row(arena.take<float>(2 * padded_columns(columns))),
        own(arena, direct_tokens, columns),
        matmul(arena, kernels) {}
  float* row;   // one token in fp32, and room for pack_token
  PackedX own;  // x of few tokens: each thread widens them for itself instead of waiting for the others
  MatmulScratch matmul;
};

inline std::int64_t multiply_bytes(const Kernels& kernels, int threads, std::int64_t tokens, std::int64_t columns) {
  return bytes_of<PackedX>(std::min(tokens, block_tokens), columns) +
         threads * bytes_of<MultiplyPart>(kernels, columns);
}

// Products that one thread finishes sooner than others wake up.
inline constexpr std::int64_t single_thread_products = 1 << 16;

// x(t): the bf16 row of token t. store(t, first, values, count): `count` fp32 results of token t from column `first`
// of the weights' rows one after another.
template <typename X, typename Store>
void CpuBackend::multiply(std::int64_t tokens, std::span<const WeightMatrix> weights, Arena arena, const X& x,
                          const Store& store) {
  if (weights.empty() || tokens == 0) return;
  const std::int64_t columns = weights.front().columns;
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) rows += weight.rows;
  PackedX shared(arena, std::min(tokens, block_tokens), columns);
  const ThreadArenas parts(arena, pool_.size(), bytes_of<MultiplyPart>(kernels_, columns));
  const auto begin_block = [&](PackedX& packed, std::int64_t count) {
    packed.begin(count, columns);
    for (const WeightMatrix& weight : weights) packed.need(kernels_, weight);
  };
  const bool few = tokens <= direct_tokens;
  const int threads = few && tokens * rows * columns < single_thread_products ? 1 : pool_.size();

  for (std::int64_t block = 0; block < tokens; block += block_tokens) {
    begin_block(shared, std::min(block_tokens, tokens - block));
    if (!few) {
      pool_.split(shared.tokens, 4, [&](std::int64_t begin, std::int64_t end, int thread) {
        Arena own = parts[thread];
        const MultiplyPart part(own, kernels_, columns);
        for (std::int64_t t = begin; t < end; ++t) pack_token(kernels_, x(block + t), shared, t, part.row);
      });
    }
    const auto work = [&](int thread) {
      Arena own = parts[thread];
      MultiplyPart part(own, kernels_, columns);
      if (few) {
        begin_block(part.own, tokens);
        for (std::int64_t t = 0; t < tokens; ++t) pack_token(kernels_, x(t), part.own, t, part.row);
      }
      const RowRange owned = owned_rows(rows, thread, threads);
      std::int64_t before = 0;
      for (const WeightMatrix& weight : weights) {
        const std::int64_t begin = std::max(owned.begin - before, std::int64_t{0});
        const std::int64_t end = std::min(owned.end - before, weight.rows);
        multiply_rows(kernels_, weight, begin, end, few ? part.own : shared, part.matmul, part.matmul.out,
                      [&](std::int64_t first, std::int64_t count, const float* values, std::int64_t stride) {
                        for (std::int64_t t = 0; t < shared.tokens; ++t) {
                          store(block + t, before + first, values + t * stride, count);
                        }
                      });
        before += weight.rows;
      }
    };
    if (threads == 1) {
      work(0);
    } else {
      pool_.run(work);
    }
  }
}

}  // namespace m3::ops::cpu
