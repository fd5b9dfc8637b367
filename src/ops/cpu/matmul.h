// y = x · Wᵀ on all threads: who widens x, who owns which rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/thread_pool.h"
#include "src/ops/cpu/kernels.h"
#include "src/ops/host/arena.h"
#include "src/ops/host/quantise.h"
#include "src/ops/ops.h"

namespace m3::ops::cpu {

// Rows a thread computes between two stores of results.
inline constexpr std::int64_t direct_rows = 64;
inline constexpr std::int64_t max_panel_rows = 64;

// Memory of one thread.
struct MatmulScratch {
  MatmulScratch(Arena& arena, const Kernels& kernels)
      : panel(arena.take<float>(kernels.panel_rows * k_block)),
        sums(arena.take<float>(block_tokens * kernels.panel_rows * kernels.lanes)),
        out(arena.take<float>(2 * out_elements)) {}
  // The larger of [direct_tokens, direct_rows] and [block_tokens, panel_rows].
  static constexpr std::int64_t out_elements = block_tokens * max_panel_rows;
  float* panel;
  float* sums;
  float* out;  // two products' worth: gate and up
};

// Which arrangement of x a weight is multiplied with.
enum class Arrangement : std::uint8_t {
  plain,
  interleaved,  // see Kernels::interleaved
  quantised,    // e4m3 values with a scale a token, in the order that the fp8 weights want
};
inline constexpr int arrangements = 3;

inline Arrangement arrangement_for(const Kernels& kernels, const WeightMatrix& weight) {
  if (weight.quantized_activations) return Arrangement::quantised;
  return kernels.interleaved(weight.format) ? Arrangement::interleaved : Arrangement::plain;
}

// x of one block of tokens as fp32 panels, in the arrangements that its weights need.
struct PackedX {
  PackedX() = default;
  PackedX(Arena& arena, std::int64_t most_tokens, std::int64_t most_columns)
      : token_scales(arena.take<float>(most_tokens)) {
    for (float*& panel : panels) panel = arena.take<float>(most_tokens * padded_columns(most_columns));
  }
  float* panels[arrangements] = {};
  float* token_scales = nullptr;
  bool needed[arrangements] = {};
  std::int64_t tokens = 0;
  std::int64_t columns = 0;

  void begin(std::int64_t token_count, std::int64_t column_count) {
    tokens = token_count;
    columns = column_count;
    for (bool& need : needed) need = false;
  }
  void need(const Kernels& kernels, const WeightMatrix& weight) {
    needed[static_cast<int>(arrangement_for(kernels, weight))] = true;
  }
  float* panel(Arrangement arrangement) const { return panels[static_cast<int>(arrangement)]; }
  bool needs(Arrangement arrangement) const { return needed[static_cast<int>(arrangement)]; }
  std::int64_t depth() const { return tokens <= direct_tokens ? padded_columns(columns) : k_block; }
  XPanel view(Arrangement arrangement) const {
    return {panel(arrangement), tokens, depth(), arrangement == Arrangement::quantised ? token_scales : nullptr};
  }
};

// One token's bf16 row into its place in the panels. `row` is scratch of 2 padded_columns(columns).
void pack_token(const Kernels& kernels, const std::uint16_t* values, const PackedX& x, std::int64_t token, float* row);
// The same of an fp32 row, which only the plain arrangement takes.
void pack_token(const Kernels& kernels, const float* values, const PackedX& x, std::int64_t token, float* row);

// Rows [begin, end) of a weight: store(first row, rows, results [tokens, stride], stride) a chunk at a time.
template <typename Store>
void multiply_rows(const Kernels& kernels, const WeightMatrix& weight, std::int64_t begin, std::int64_t end,
                   const PackedX& x, const MatmulScratch& scratch, float* out, const Store& store) {
  const std::int64_t chunk = x.tokens <= direct_tokens ? direct_rows : kernels.panel_rows;
  MatmulCall call{&weight, 0, 0, x.view(arrangement_for(kernels, weight)), scratch.panel, scratch.sums, out, chunk};
  for (std::int64_t first = begin; first < end; first += chunk) {
    call.first = first;
    call.rows = std::min(chunk, end - first);
    kernels.matmul(call);
    store(first, call.rows, out, chunk);
  }
}

// The share of `count` rows that a thread owns, in units that fill the kernels' tiles.
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
};
inline RowRange owned_rows(std::int64_t count, int thread, int threads) {
  constexpr std::int64_t unit = 24;  // a multiple of every tile's rows
  const std::int64_t units = (count + unit - 1) / unit;
  return {std::min(count, units * thread / threads * unit), std::min(count, units * (thread + 1) / threads * unit)};
}

}  // namespace m3::ops::cpu
