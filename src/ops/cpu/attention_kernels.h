// Attention over one page, and index scores of one page, for one instruction set. Included after its Simd.
#pragma once

#include "src/ops/cpu/kernels.h"
#include "src/ops/cpu/matmul_kernels.h"

namespace m3::ops::cpu {
namespace {

// out[count · 128] <- rows of a page in fp32.
void widen_rows(DType type, const std::byte* from, std::int64_t row, std::int64_t count, float scale, float* out) {
  const std::int64_t begin = row * head_dim;
  const std::int64_t elements = count * head_dim;
  if (type == DType::bf16) {
    const auto* values = reinterpret_cast<const std::uint16_t*>(from) + begin;
    for (std::int64_t i = 0; i < elements; i += L) Simd::store(out + i, Simd::load_bf16(values + i));
  } else if (type == DType::f8_e4m3) {
    const V factor = Simd::all(scale * e4m3_factor);
    constexpr int registers = 32 / L;
    for (std::int64_t i = 0; i < elements; i += 32) {
      V w[registers];
      Simd::widen_e4m3(from + begin + i, w);
      for (int j = 0; j < registers; ++j) Simd::store(out + i + j * L, Simd::mul(w[j], factor));
    }
  } else {
    __builtin_memcpy(out, from + begin * 4, static_cast<std::size_t>(elements) * 4);
  }
}

void attention_begin(int heads, const AttentionState& state) {
  for (int h = 0; h < heads; ++h) {
    state.highest[h] = -__builtin_inff();
    state.total[h] = 0;
  }
  for (int i = 0; i < heads * head_dim; ++i) state.sums[i] = 0;
}

// scores[key][heads] of K keys: lanes are heads, a key's elements are broadcast, d ascends.
template <int K, int N>
void score_keys(const float* q, const float* rows, V scale, float* scores) {
  V sums[K][N];
#pragma GCC unroll 16
  for (int key = 0; key < K; ++key) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) sums[key][n] = Simd::zero();
  }
  for (int d = 0; d < head_dim; ++d) {
    V query[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) query[n] = Simd::load(q + (d * N + n) * L);
#pragma GCC unroll 16
    for (int key = 0; key < K; ++key) {
      const V element = Simd::all(rows[key * head_dim + d]);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sums[key][n] = Simd::fma(element, query[n], sums[key][n]);
    }
  }
#pragma GCC unroll 16
  for (int key = 0; key < K; ++key) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) Simd::store(scores + (key * N + n) * L, Simd::mul(sums[key][n], scale));
  }
}

// sums[d .. d + D)[heads] += p[key][heads] · v[key][d], keys ascending.
template <int D, int N>
void add_values(const float* p, const float* rows, std::int64_t count, int d, float* sums) {
  V kept[D][N];
#pragma GCC unroll 16
  for (int i = 0; i < D; ++i) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) kept[i][n] = Simd::load(sums + ((d + i) * N + n) * L);
  }
  for (std::int64_t key = 0; key < count; ++key) {
    V weight[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) weight[n] = Simd::load(p + (key * N + n) * L);
#pragma GCC unroll 16
    for (int i = 0; i < D; ++i) {
      const V element = Simd::all(rows[key * head_dim + d + i]);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) kept[i][n] = Simd::fma(element, weight[n], kept[i][n]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < D; ++i) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) Simd::store(sums + ((d + i) * N + n) * L, kept[i][n]);
  }
}

template <int N>
void attend_page_heads(const AttentionCall& call, const AttentionState& state) {
  constexpr int K = 12 / N;  // 12 sums, the queries and a broadcast fill AVX2's registers
  constexpr int D = 12 / N;
  const V scale = Simd::all(call.scale);
  for (std::int64_t begin = 0; begin < call.count; begin += key_chunk) {
    const std::int64_t count = call.count - begin < key_chunk ? call.count - begin : key_chunk;
    const float* rows = call.wide_k != nullptr ? call.wide_k + begin * head_dim : call.rows;
    if (rows == call.rows) widen_rows(call.k_type, call.k, begin, count, call.k_scale, call.rows);
    std::int64_t key = 0;
    for (; key + K <= count; key += K) {
      score_keys<K, N>(call.q, rows + key * head_dim, scale, call.scores + (begin + key) * N * L);
    }
    for (; key + 2 <= count; key += 2) {
      score_keys<2, N>(call.q, rows + key * head_dim, scale, call.scores + (begin + key) * N * L);
    }
    for (; key < count; ++key) {
      score_keys<1, N>(call.q, rows + key * head_dim, scale, call.scores + (begin + key) * N * L);
    }
  }

  for (int n = 0; n < N; ++n) {
    const V before = Simd::load(state.highest + n * L);
    V highest = before;
    for (std::int64_t key = 0; key < call.count; ++key) {
      highest = Simd::max(highest, Simd::load(call.scores + (key * N + n) * L));
    }
    V total = Simd::zero();
    for (std::int64_t key = 0; key < call.count; ++key) {
      float* at = call.scores + (key * N + n) * L;
      const V p = Simd::exp(Simd::sub(Simd::load(at), highest));
      Simd::store(at, p);
      total = Simd::add(total, p);
    }
    const V fade = Simd::exp(Simd::sub(before, highest));
    Simd::store(state.highest + n * L, highest);
    Simd::store(state.total + n * L, Simd::fma(Simd::load(state.total + n * L), fade, total));
    for (int d = 0; d < head_dim; ++d) {
      float* at = state.sums + (d * N + n) * L;
      Simd::store(at, Simd::mul(Simd::load(at), fade));
    }
  }

  for (std::int64_t begin = 0; begin < call.count; begin += key_chunk) {
    const std::int64_t count = call.count - begin < key_chunk ? call.count - begin : key_chunk;
    const float* rows = call.wide_v != nullptr ? call.wide_v + begin * head_dim : call.rows;
    if (rows == call.rows) widen_rows(call.v_type, call.v, begin, count, call.v_scale, call.rows);
    const float* p = call.scores + begin * N * L;
    int d = 0;
    for (; d + D <= head_dim; d += D) add_values<D, N>(p, rows, count, d, state.sums);
    add_values<head_dim % D, N>(p, rows, count, d, state.sums);
  }
}

void attend_page(const AttentionCall& call, const AttentionState& state) {
  if (call.heads == L) return attend_page_heads<1>(call, state);
  if constexpr (max_heads / L > 1) attend_page_heads<max_heads / L>(call, state);
}

void attention_merge(int heads, const AttentionState& into, const AttentionState& other) {
  for (int h = 0; h < heads; h += L) {
    const V a = Simd::load(into.highest + h);
    const V b = Simd::load(other.highest + h);
    const V highest = Simd::max(a, b);
    const V fade_a = Simd::exp(Simd::sub(a, highest));
    const V fade_b = Simd::exp(Simd::sub(b, highest));
    Simd::store(into.highest + h, highest);
    Simd::store(into.total + h,
                Simd::fma(Simd::load(into.total + h), fade_a, Simd::mul(Simd::load(other.total + h), fade_b)));
    for (int d = 0; d < head_dim; ++d) {
      float* at = into.sums + d * heads + h;
      const V added = Simd::mul(Simd::load(other.sums + d * heads + h), fade_b);
      Simd::store(at, Simd::fma(Simd::load(at), fade_a, added));
    }
  }
}

void attention_finish(int heads, const AttentionState& state) {
  for (int h = 0; h < heads; h += L) {
    const V total = Simd::load(state.total + h);
    for (int d = 0; d < head_dim; ++d) {
      float* at = state.sums + d * heads + h;
      Simd::store(at, Simd::div(Simd::load(at), total));
    }
  }
}

// Keys of a chunk, in fp32 or as stored.
struct WideKeys {
  const float* rows;
  V load(int key, int d) const { return Simd::load(rows + key * head_dim + d); }
};
struct StoredKeys {
  const std::uint16_t* rows;
  V load(int key, int d) const { return Simd::load_bf16(rows + key * head_dim + d); }
};

// Dot products of 4 queries with K keys from `first` on, in the order of matmul.
template <int K, typename Keys>
void score_tile(const float* const (&queries)[4], const Keys& chunk, int first, __m128 (&out)[K]) {
  V sums[4][K];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
#pragma GCC unroll 4
    for (int key = 0; key < K; ++key) sums[q][key] = Simd::zero();
  }
  for (int d = 0; d < head_dim; d += L) {
    V keys[K];
#pragma GCC unroll 4
    for (int key = 0; key < K; ++key) keys[key] = chunk.load(first + key, d);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      const V query = Simd::load(queries[q] + d);
#pragma GCC unroll 4
      for (int key = 0; key < K; ++key) sums[q][key] = Simd::fma(query, keys[key], sums[q][key]);
    }
  }
#pragma GCC unroll 4
  for (int key = 0; key < K; ++key) out[key] = Simd::sum4(sums[0][key], sums[1][key], sums[2][key], sums[3][key]);
}

// Raises the scores of the queries from `first` on, 4 of them, by the keys of a chunk that begins at key `begin`; past
// the last query the last one is repeated.
template <typename Keys>
void score_chunk(const ScoreCall& call, const Keys& chunk, std::int64_t begin, int count, std::int64_t first) {
  const float* queries[4];
  std::int64_t index[4];
  alignas(16) int visible[4];
  alignas(16) float best[4];
  int lowest = count;
  int highest = 0;
  for (int i = 0; i < 4; ++i) {
    index[i] = first + i < call.count ? first + i : call.count - 1;
    queries[i] = call.queries + index[i] * head_dim;
    const std::int64_t left = call.visible[index[i]] - begin;
    visible[i] = left < 0 ? 0 : left > count ? count : static_cast<int>(left);
    if (visible[i] < lowest) lowest = visible[i];
    if (visible[i] > highest) highest = visible[i];
    best[i] = call.scores[index[i] * call.stride];
  }
  __m128 top = _mm_load_ps(best);
  int key = 0;
  for (; key + 3 <= lowest; key += 3) {
    __m128 scores[3];
    score_tile<3>(queries, chunk, key, scores);
    for (const __m128 score : scores) top = _mm_max_ps(score, top);
  }
  for (; key < highest; ++key) {
    __m128 scores[1];
    score_tile<1>(queries, chunk, key, scores);
    const __m128i seen =
        _mm_cmpgt_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(visible)), _mm_set1_epi32(key));
    top = _mm_blendv_ps(top, _mm_max_ps(scores[0], top), _mm_castsi128_ps(seen));
  }
  _mm_store_ps(best, top);
  for (int i = 0; i < 4; ++i) call.scores[index[i] * call.stride] = best[i];
}

// The highest score of each query over its visible keys; a NaN never replaces a score.
void score_page(const ScoreCall& call) {
  for (std::int64_t i = 0; i < call.count; ++i) call.scores[i * call.stride] = -__builtin_inff();
  const std::int64_t row_bytes = head_dim * (call.type == DType::f32 ? 4 : call.type == DType::bf16 ? 2 : 1);
  for (std::int64_t begin = 0; begin < call.key_count; begin += key_chunk) {
    const std::int64_t rest = call.key_count - begin;
    const int count = static_cast<int>(rest < key_chunk ? rest : key_chunk);
    // The chunk after this one comes while this one is computed.
    const std::byte* after = rest > key_chunk ? call.keys + (begin + key_chunk) * row_bytes : call.next;
    if (after != nullptr) {
      for (std::int64_t at = 0; at < key_chunk * row_bytes; at += 64) Simd::prefetch(after + at);
    }
    if (call.count <= 4 && call.type == DType::bf16) {
      const auto* rows = reinterpret_cast<const std::uint16_t*>(call.keys + begin * row_bytes);
      score_chunk(call, StoredKeys{rows}, begin, count, 0);
      continue;
    }
    widen_rows(call.type, call.keys, begin, count, 1.0f, call.rows);
    for (std::int64_t first = 0; first < call.count; first += 4) {
      score_chunk(call, WideKeys{call.rows}, begin, count, first);
    }
  }
}

}  // namespace
}  // namespace m3::ops::cpu
