// The gated MLP that dense layers, experts and the shared expert have in common (spec §3.12).
#pragma once

#include "src/ops/ops.h"
#include "src/ops/scalar/matmul.h"

namespace m3::ops::scalar {

// The gate is bounded above only, the up branch on both sides.
float swigluoai(float gate, float up, const Activation& activation);

// Errors (internal): the three matrices do not fit one another or the hidden size.
void check_mlp(const MlpWeights& weights, std::int64_t hidden);

struct MlpScratch {
  MlpScratch(Arena& arena, int threads, std::int64_t tokens, std::int64_t hidden, std::int64_t width)
      : matmul(arena, threads, tokens, std::max(hidden, width)),
        gate(arena.take<float>(tokens * width)),
        sums(arena.take<float>(tokens * hidden)),
        weights(arena.take<float>(tokens)),
        listed(arena.take<std::int64_t>(tokens)) {}
  MatmulScratch matmul;
  float* gate;           // [tokens, width]: gate, then the activation
  float* sums;           // [tokens, hidden] in fp32
  float* weights;        // [tokens] of the expert at hand
  std::int64_t* listed;  // [tokens] those of the expert at hand
};

// sums[t] += weight(t) · down · round(act(round(gate · x), round(up · x))) over the listed tokens, in fp32.
template <typename Round, typename Weight>
void add_mlp(ThreadPool& pool, const MlpScratch& scratch, const Tensor& hidden, std::int64_t tokens,
             const MlpWeights& weights, const Activation& activation, const Round& rounded, const Weight& weight) {
  const std::int64_t width = weights.gate.rows;
  const std::int64_t columns = weights.down.rows;
  const auto x = [&](std::int64_t i) { return reinterpret_cast<const float*>(hidden.row(scratch.listed[i])); };
  matmul(pool, scratch.matmul, tokens, x, weights.gate,
         [&](std::int64_t i, std::int64_t row, float value) { scratch.gate[i * width + row] = rounded(value); });
  matmul(pool, scratch.matmul, tokens, x, weights.up, [&](std::int64_t i, std::int64_t row, float value) {
    float& gate = scratch.gate[i * width + row];
    gate = rounded(swigluoai(gate, rounded(value), activation));
  });
  const auto y = [&](std::int64_t i) { return scratch.gate + i * width; };
  matmul(pool, scratch.matmul, tokens, y, weights.down, [&](std::int64_t i, std::int64_t row, float value) {
    scratch.sums[scratch.listed[i] * columns + row] += weight(i) * value;
  });
}

}  // namespace m3::ops::scalar
