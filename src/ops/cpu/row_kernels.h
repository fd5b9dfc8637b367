// Operations on rows of activations for one instruction set. Included after its Simd; see matmul_kernels.h.
#pragma once

#include "src/ops/cpu/kernels.h"

namespace m3::ops::cpu {
namespace {

void widen_bf16(const std::uint16_t* values, std::int64_t count, std::int64_t padded, float* out) {
  std::int64_t i = 0;
  for (; i + L <= count; i += L) Simd::store(out + i, Simd::load_bf16(values + i));
  for (; i < count; ++i) {
    out[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(values[i]) << 16);
  }
  for (; i < padded; ++i) out[i] = 0;
}

bool interleaved(WeightFormat format) { return Simd::interleaved(format); }

void interleave(const std::uint16_t* values, std::int64_t count, std::int64_t padded, float* out) {
  std::int64_t i = 0;
  for (; i + Simd::group_columns <= count; i += Simd::group_columns) Simd::interleave(values + i, out + i);
  for (; i < padded; i += Simd::group_columns) {
    std::uint16_t rest[Simd::group_columns] = {};
    if (i < count) __builtin_memcpy(rest, values + i, static_cast<std::size_t>(count - i) * 2);
    Simd::interleave(rest, out + i);
  }
}

// Loads and stores that may end inside a register go through a padded copy.
V load_some(const float* from, std::int64_t count) {
  if (count >= L) return Simd::load(from);
  float copy[L] = {};
  __builtin_memcpy(copy, from, static_cast<std::size_t>(count) * 4);
  return Simd::load(copy);
}
V load_some(const std::uint16_t* from, std::int64_t count) {
  if (count >= L) return Simd::load_bf16(from);
  std::uint16_t copy[L] = {};
  __builtin_memcpy(copy, from, static_cast<std::size_t>(count) * 2);
  return Simd::load_bf16(copy);
}
void store_some(std::uint16_t* to, V value, std::int64_t count) {
  if (count >= L) return Simd::store_bf16(to, value);
  std::uint16_t copy[L];
  Simd::store_bf16(copy, value);
  __builtin_memcpy(to, copy, static_cast<std::size_t>(count) * 2);
}

void round_bf16(const float* values, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += L) store_some(out + i, load_some(values + i, count - i), count - i);
}

// NaN where the squares overflowed: 1/sqrt(inf) = 0 would turn a broken row into one of plain zeros.
float inverse_root(float mean_plus_eps) {
  return mean_plus_eps <= __FLT_MAX__ ? 1.0f / __builtin_sqrtf(mean_plus_eps) : __builtin_nanf("");
}

void add_norm(std::uint16_t* x, const std::uint16_t* delta, const float* weight, bool gemma, float eps,
              std::int64_t count, std::uint16_t* out) {
  V squares = Simd::zero();
  for (std::int64_t i = 0; i < count; i += L) {
    V value = load_some(x + i, count - i);
    if (delta != nullptr) {
      value = Simd::round_bf16(Simd::add(value, load_some(delta + i, count - i)));
      store_some(x + i, value, count - i);
    }
    squares = Simd::fma(value, value, squares);
  }
  if (out == nullptr) return;
  const V r = Simd::all(inverse_root(Simd::sum(squares) / static_cast<float>(count) + eps));
  const V one = gemma ? Simd::all(1.0f) : Simd::zero();
  for (std::int64_t i = 0; i < count; i += L) {
    const V value = load_some(x + i, count - i);
    const V w = Simd::add(one, load_some(weight + i, count - i));
    store_some(out + i, Simd::mul(Simd::mul(value, r), w), count - i);
  }
}

void norm_rotate(const std::uint16_t* x, const float* weight, bool gemma, float eps, const float* table, int rotary_dim,
                 float* y) {
  V squares = Simd::zero();
  for (int i = 0; i < head_dim; i += L) {
    const V value = Simd::load_bf16(x + i);
    squares = Simd::fma(value, value, squares);
    Simd::store(y + i, value);
  }
  if (weight != nullptr) {
    const V r = Simd::all(inverse_root(Simd::sum(squares) / head_dim + eps));
    const V one = gemma ? Simd::all(1.0f) : Simd::zero();
    for (int i = 0; i < head_dim; i += L) {
      const V w = Simd::add(one, Simd::load(weight + i));
      Simd::store(y + i, Simd::mul(Simd::mul(Simd::load(y + i), r), w));
    }
  }
  const int half = rotary_dim / 2;
  int i = 0;
  for (; i + L <= half; i += L) {
    const V a = Simd::load(y + i);
    const V b = Simd::load(y + i + half);
    const V cosine = Simd::load(table + i);
    const V sine = Simd::load(table + i + half);
    Simd::store(y + i, Simd::sub(Simd::mul(a, cosine), Simd::mul(b, sine)));
    Simd::store(y + i + half, Simd::add(Simd::mul(b, cosine), Simd::mul(a, sine)));
  }
  for (; i < half; ++i) {
    const float a = y[i];
    const float b = y[i + half];
    y[i] = a * table[i] - b * table[half + i];
    y[i + half] = b * table[i] + a * table[half + i];
  }
}

void swigluoai(const float* gate, const float* up, const Activation& activation, std::int64_t count,
               std::uint16_t* out) {
  const V alpha = Simd::all(-activation.alpha);
  const V limit = Simd::all(activation.limit);
  const V low = Simd::all(-activation.limit);
  const V beta = Simd::all(activation.beta);
  const V one = Simd::all(1.0f);
  for (std::int64_t i = 0; i < count; i += L) {
    const V g = Simd::min(limit, Simd::round_bf16(load_some(gate + i, count - i)));
    const V u = Simd::max(low, Simd::min(limit, Simd::round_bf16(load_some(up + i, count - i))));
    const V sigmoid = Simd::div(one, Simd::add(one, Simd::exp(Simd::mul(alpha, g))));
    store_some(out + i, Simd::mul(Simd::mul(g, sigmoid), Simd::add(u, beta)), count - i);
  }
}

void accumulate(const float* values, float weight, std::int64_t count, float* out) {
  const V w = Simd::all(weight);
  std::int64_t i = 0;
  for (; i + L <= count; i += L) {
    Simd::store(out + i, Simd::add(Simd::load(out + i), Simd::mul(w, Simd::load(values + i))));
  }
  for (; i < count; ++i) out[i] += weight * values[i];
}

}  // namespace
}  // namespace m3::ops::cpu
