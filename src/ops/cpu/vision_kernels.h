// The vision tower's rows and its attention for one instruction set. Included after its Simd and row_kernels.h.
#pragma once

#include "src/ops/cpu/kernels.h"
#include "src/ops/cpu/row_kernels.h"

namespace m3::ops::cpu {
namespace {

void add_bias(const float* values, const float* bias, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += L) {
    store_some(out + i, Simd::add(load_some(values + i, count - i), load_some(bias + i, count - i)), count - i);
  }
}

// x · Φ(x), relative error about 1e-6. For a = |x|: Φ(-a) = exp(-a²/2) · P(t), t = 1/(1 + 0.35 a), P of degree 9 fitted
// to 2.8e-7 over 0 ... 14; so the small results of negative x keep their digits.
V gelu(V x) {
  static constexpr float coefficients[] = {-0.029158029705286026f, 0.1440316140651703f,    -0.25584039092063904f,
                                           0.15932124853134155f,   -0.023213393986225128f, 0.10555292665958405f,
                                           0.11982118338346481f,   0.1398635357618332f,    0.139621302485466f};
  const V a = Simd::absolute(x);
  const V t = Simd::div(Simd::all(1.0f), Simd::fma(a, Simd::all(0.35f), Simd::all(1.0f)));
  V p = Simd::all(coefficients[0]);
  for (int i = 1; i < 9; ++i) p = Simd::fma(p, t, Simd::all(coefficients[i]));
  const V below = Simd::mul(Simd::mul(p, t), Simd::exp(Simd::mul(Simd::mul(a, Simd::all(-0.5f)), a)));
  return Simd::mul(x, Simd::where_negative(x, below, Simd::sub(Simd::all(1.0f), below)));
}

void add_bias_gelu(const float* values, const float* bias, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += L) {
    const V sum = Simd::add(load_some(values + i, count - i), load_some(bias + i, count - i));
    store_some(out + i, gelu(Simd::round_bf16(sum)), count - i);
  }
}

void layer_norm(std::uint16_t* x, const std::uint16_t* delta, const float* weight, const float* bias, float eps,
                std::int64_t count, std::uint16_t* out) {
  V sums = Simd::zero();
  for (std::int64_t i = 0; i < count; i += L) {
    V value = load_some(x + i, count - i);
    if (delta != nullptr) {
      value = Simd::round_bf16(Simd::add(value, load_some(delta + i, count - i)));
      store_some(x + i, value, count - i);
    }
    sums = Simd::add(sums, value);
  }
  if (out == nullptr) return;
  float ones[L];
  for (float& one : ones) one = 1;
  const V mean = Simd::all(Simd::sum(sums) / static_cast<float>(count));
  V squares = Simd::zero();
  for (std::int64_t i = 0; i < count; i += L) {
    V centred = Simd::sub(load_some(x + i, count - i), mean);
    if (count - i < L) centred = Simd::mul(centred, load_some(ones, count - i));  // padding is no element
    squares = Simd::fma(centred, centred, squares);
  }
  const V r = Simd::all(inverse_root(Simd::sum(squares) / static_cast<float>(count) + eps));
  for (std::int64_t i = 0; i < count; i += L) {
    const V centred = Simd::sub(load_some(x + i, count - i), mean);
    const V scaled = Simd::mul(Simd::mul(centred, r), load_some(weight + i, count - i));
    store_some(out + i, Simd::add(scaled, load_some(bias + i, count - i)), count - i);
  }
}

// In place, pairs (i, i + pairs); table: cos, then sin.
void rotate_pairs(std::uint16_t* x, const float* table, int pairs) {
  for (int i = 0; i < pairs; i += L) {
    const std::int64_t rest = pairs - i;
    const V a = load_some(x + i, rest);
    const V b = load_some(x + i + pairs, rest);
    const V cosine = load_some(table + i, rest);
    const V sine = load_some(table + i + pairs, rest);
    store_some(x + i, Simd::sub(Simd::mul(a, cosine), Simd::mul(b, sine)), rest);
    store_some(x + i + pairs, Simd::add(Simd::mul(b, cosine), Simd::mul(a, sine)), rest);
  }
}

// Attention: lanes are queries, two registers of them at a time.
constexpr int dimensions = vision_head_dim;
constexpr int lane_queries = 2 * L;
// Keys, or dimensions of values, that stay in registers at once: 24 sums of AVX-512's 32 registers, 12 of AVX2's 16.
constexpr int score_keys_at_once = Simd::lanes == 16 ? 12 : 6;
constexpr int value_dimensions_at_once = Simd::lanes == 16 ? 10 : 5;
static_assert(segment_queries % lane_queries == 0 && segment_keys % score_keys_at_once == 0);
static_assert(dimensions % value_dimensions_at_once == 0 && dimensions % L == 0);

// scores [K][lane_queries] <- q [80][lane_queries] · k [K][80] · scale, dimensions ascending.
void segment_scores(const float* q, const float* k, V scale, float* scores) {
  constexpr int K = score_keys_at_once;
  V sums[K][2];
#pragma GCC unroll 16
  for (int key = 0; key < K; ++key) sums[key][0] = sums[key][1] = Simd::zero();
  for (int d = 0; d < dimensions; ++d) {
    const V first = Simd::load(q + d * lane_queries);
    const V second = Simd::load(q + d * lane_queries + L);
#pragma GCC unroll 16
    for (int key = 0; key < K; ++key) {
      const V element = Simd::all(k[key * dimensions + d]);
      sums[key][0] = Simd::fma(element, first, sums[key][0]);
      sums[key][1] = Simd::fma(element, second, sums[key][1]);
    }
  }
#pragma GCC unroll 16
  for (int key = 0; key < K; ++key) {
    Simd::store(scores + key * lane_queries, Simd::mul(sums[key][0], scale));
    Simd::store(scores + key * lane_queries + L, Simd::mul(sums[key][1], scale));
  }
}

// sums [D][lane_queries] <- sums · factors + Σ over keys, ascending, of p [keys][lane_queries] · v [keys][80].
void segment_values(const float* p, const float* v, std::int64_t keys, const V (&factors)[2], float* sums) {
  constexpr int D = value_dimensions_at_once;
  V kept[D][2];
#pragma GCC unroll 16
  for (int i = 0; i < D; ++i) {
    kept[i][0] = Simd::mul(Simd::load(sums + i * lane_queries), factors[0]);
    kept[i][1] = Simd::mul(Simd::load(sums + i * lane_queries + L), factors[1]);
  }
  for (std::int64_t key = 0; key < keys; ++key) {
    const V first = Simd::load(p + key * lane_queries);
    const V second = Simd::load(p + key * lane_queries + L);
#pragma GCC unroll 16
    for (int i = 0; i < D; ++i) {
      const V element = Simd::all(v[key * dimensions + i]);
      kept[i][0] = Simd::fma(element, first, kept[i][0]);
      kept[i][1] = Simd::fma(element, second, kept[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < D; ++i) {
    Simd::store(sums + i * lane_queries, kept[i][0]);
    Simd::store(sums + i * lane_queries + L, kept[i][1]);
  }
}

// scores become exp(score - highest); `factors` are what earlier sums must be multiplied by.
void segment_softmax(float* scores, std::int64_t keys, float* highest, float* total, V (&factors)[2]) {
  for (int n = 0; n < 2; ++n) {
    const V before = Simd::load(highest + n * L);
    V top = before;
    for (std::int64_t key = 0; key < keys; ++key) {
      top = Simd::max(Simd::load(scores + key * lane_queries + n * L), top);
    }
    factors[n] = Simd::exp(Simd::sub(before, top));
    V all = Simd::mul(Simd::load(total + n * L), factors[n]);
    for (std::int64_t key = 0; key < keys; ++key) {
      float* at = scores + key * lane_queries + n * L;
      const V p = Simd::exp(Simd::sub(Simd::load(at), top));
      Simd::store(at, p);
      all = Simd::add(all, p);
    }
    Simd::store(highest + n * L, top);
    Simd::store(total + n * L, all);
  }
}

void widen_head(const std::uint16_t* from, float* to) {
  for (int d = 0; d < dimensions; d += L) Simd::store(to + d, Simd::load_bf16(from + d));
}

void attend_segment(const SegmentCall& call) {
  constexpr std::int64_t tile_elements = dimensions * lane_queries;
  constexpr std::int64_t chunk_elements = segment_keys * dimensions;
  float* q = call.scratch;
  float* sums = q + segment_queries * dimensions;
  float* highest = sums + segment_queries * dimensions;
  float* total = highest + segment_queries;
  float* k = total + segment_queries;
  float* v = k + chunk_elements;
  float* scores = v + chunk_elements;
  const std::int64_t tiles = (call.queries + lane_queries - 1) / lane_queries;
  const auto place = [](std::int64_t query) __attribute__((always_inline)) {
    return query / lane_queries * tile_elements + query % lane_queries;
  };

  float row[dimensions];
  for (std::int64_t i = 0; i < tiles * tile_elements; ++i) q[i] = sums[i] = 0;
  for (std::int64_t i = 0; i < tiles * lane_queries; ++i) {
    highest[i] = -__builtin_inff();
    total[i] = 0;
  }
  for (std::int64_t query = 0; query < call.queries; ++query) {
    widen_head(call.q + query * call.stride, row);
    for (int d = 0; d < dimensions; ++d) q[place(query) + d * lane_queries] = row[d];
  }

  const V scale = Simd::all(call.scale);
  for (std::int64_t begin = 0; begin < call.keys; begin += segment_keys) {
    const std::int64_t count = call.keys - begin < segment_keys ? call.keys - begin : segment_keys;
    const std::int64_t padded = (count + score_keys_at_once - 1) / score_keys_at_once * score_keys_at_once;
    for (std::int64_t key = 0; key < count; ++key) {
      widen_head(call.k + (begin + key) * call.stride, k + key * dimensions);
      widen_head(call.v + (begin + key) * call.stride, v + key * dimensions);
    }
    for (std::int64_t i = count * dimensions; i < padded * dimensions; ++i) k[i] = 0;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t key = 0; key < padded; key += score_keys_at_once) {
        segment_scores(q + tile * tile_elements, k + key * dimensions, scale, scores + key * lane_queries);
      }
      V factors[2];
      segment_softmax(scores, count, highest + tile * lane_queries, total + tile * lane_queries, factors);
      for (int d = 0; d < dimensions; d += value_dimensions_at_once) {
        segment_values(scores, v + d, count, factors, sums + tile * tile_elements + d * lane_queries);
      }
    }
  }

  for (std::int64_t query = 0; query < call.queries; ++query) {
    for (int d = 0; d < dimensions; ++d) row[d] = sums[place(query) + d * lane_queries] / total[query];
    round_bf16(row, dimensions, call.out + query * call.out_stride);
  }
}

}  // namespace
}  // namespace m3::ops::cpu
