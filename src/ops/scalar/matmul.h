// y = x · Wᵀ for the judge, with the result handed to the caller unrounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/base/thread_pool.h"
#include "src/base/weight_matrix.h"
#include "src/ops/host/arena.h"
#include "src/ops/host/quantise.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

inline constexpr std::int64_t tile_rows = 8;  // weight rows that share one pass over the tokens

// Memory for products of up to `tokens` rows of `columns`.
struct MatmulScratch {
  MatmulScratch(Arena& arena, int threads, std::int64_t tokens, std::int64_t columns)
      : tiles(arena.take<float>(threads * tile_rows * columns)),
        quantised(arena.take<float>(tokens * columns)),
        token_scales(arena.take<float>(tokens)) {}
  float* tiles;         // [threads, tile_rows, columns]
  float* quantised;     // [tokens, columns]: x as e4m3 values, where the weight asks for it
  float* token_scales;  // [tokens]
};

// x(t) [columns] for token t < tokens; calls store(token, row, value) for every row of the weight, value
// being the fp32 dot product times the row's factor. Each row is widened once. quantized_activations (ptpc):
// x is replaced by e4m3(x / s) with s = max|x| / 448 of the token, and s multiplies the product together with
// the row's factor.
template <typename X, typename Store>
void matmul(ThreadPool& pool, const MatmulScratch& scratch, std::int64_t tokens, const X& x, const WeightMatrix& weight,
            const Store& store) {
  const std::int64_t columns = weight.columns;
  const bool quantised = weight.quantized_activations;
  if (quantised) {
    pool.split(tokens, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t t = begin; t < end; ++t) {
        scratch.token_scales[t] = quantise_token(x(t), columns, scratch.quantised + t * columns);
      }
    });
  }
  pool.split(weight.rows, tile_rows, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* tile = scratch.tiles + thread * tile_rows * columns;
    for (std::int64_t first = begin; first < end; first += tile_rows) {
      const std::int64_t last = std::min(first + tile_rows, end);
      for (std::int64_t row = first; row < last; ++row) widen_codes(weight, row, tile + (row - first) * columns);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float* values = quantised ? scratch.quantised + t * columns : x(t);
        for (std::int64_t row = first; row < last; ++row) {
          const float product = dot(values, tile + (row - first) * columns, columns);
          const float factor = row_factor(weight, row);
          store(t, row, product * (quantised ? scratch.token_scales[t] * factor : factor));
        }
      }
    }
  });
}

}  // namespace m3::ops::scalar
