// y = x · Wᵀ for one instruction set. Included by *_avx2.cpp and *_avx512.cpp after their Simd.
//
// One order of summation for any number of tokens and rows: a dot product keeps one register, whose lane j sums the
// columns k = j (mod lanes) in ascending order by fused multiply-add, and adds its lanes in a fixed tree at the end.
// Few tokens (direct) and many (panel) differ in where the widened weights live, never in that order.
#pragma once

#include "src/ops/cpu/kernels.h"

namespace m3::ops::cpu {
namespace {

constexpr int group_registers = column_group / L;

constexpr float code_factor(WeightFormat format) {
  return format == WeightFormat::fp8 || format == WeightFormat::mxfp8 ? e4m3_factor : 1.0f;
}

constexpr bool half_byte(WeightFormat format) { return format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4; }

// Bytes of `columns` codes, and of their scales.
constexpr std::int64_t code_bytes(WeightFormat format, std::int64_t columns) {
  if (format == WeightFormat::f32) return columns * 4;
  if (format == WeightFormat::f16 || format == WeightFormat::bf16) return columns * 2;
  return half_byte(format) ? columns / 2 : columns;
}
constexpr std::int64_t scale_bytes(WeightFormat format, std::int64_t columns) {
  if (format == WeightFormat::mxfp8 || format == WeightFormat::mxfp4) return columns / 32;
  return format == WeightFormat::nvfp4 ? columns / 16 : 0;
}

// One row of a weight as its bytes.
struct RowBytes {
  const std::byte* values;
  const std::byte* scales;
};

template <WeightFormat format>
RowBytes row_of(const WeightMatrix& weight, std::int64_t row) {
  return {weight.values + row * code_bytes(format, weight.columns),
          weight.scales != nullptr ? weight.scales + row * scale_bytes(format, weight.columns) : nullptr};
}

// The last columns % 32 of a row, padded with zeros to a whole group.
template <WeightFormat format>
struct Tail {
  alignas(64) std::byte values[code_bytes(format, column_group)] = {};
  std::byte scales[4] = {};

  Tail(const RowBytes& row, std::int64_t columns) {
    const std::int64_t whole = columns / column_group * column_group;
    const std::int64_t rest = columns - whole;
    __builtin_memcpy(values, row.values + code_bytes(format, whole),
                     static_cast<std::size_t>(code_bytes(format, rest)));
    if (row.scales == nullptr) return;
    __builtin_memcpy(scales, row.scales + scale_bytes(format, whole),
                     static_cast<std::size_t>(scale_bytes(format, rest)));
  }
};

float factor_of(const MatmulCall& call, std::int64_t row, std::int64_t token, float base) {
  float factor = call.weight->tensor_scale;
  if (call.weight->row_scales != nullptr) factor *= call.weight->row_scales[row];
  if (call.x.token_scales != nullptr) factor *= call.x.token_scales[token];
  return factor * base;
}

constexpr bool has_nan_codes(WeightFormat format) {
  return format == WeightFormat::fp8 || format == WeightFormat::mxfp8;
}

bool row_has_nan(const RowBytes& row, std::int64_t columns) {
  for (std::int64_t k = 0; k < columns; ++k) {
    if ((static_cast<std::uint8_t>(row.values[k]) & 0x7f) == 0x7f) return true;
  }
  return false;
}

// T tokens times R rows, straight from the stored weights.
template <WeightFormat format, int T, int R>
void direct_tile(const MatmulCall& call, std::int64_t row) {
  const WeightMatrix& weight = *call.weight;
  const std::int64_t columns = weight.columns;
  const std::int64_t whole = columns / column_group * column_group;
  RowBytes rows[R];
  V sums[T][R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rows[r] = row_of<format>(weight, row + r);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t][r] = Simd::zero();
  }
  [[maybe_unused]] typename Simd::NanScan nans;
  const auto add_group = [&](const float* x, const RowBytes& bytes, std::int64_t k, int r) {
    V w[group_registers];
    Simd::widen_group<format, false>(bytes.values, bytes.scales, k, w);
    if constexpr (has_nan_codes(format)) nans.add(bytes.values + k);
#pragma GCC unroll 8
    for (int i = 0; i < group_registers; ++i) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        sums[t][r] = Simd::fma(Simd::load(x + t * call.x.depth + i * L), w[i], sums[t][r]);
      }
    }
  };
  // Each line of 64 bytes is fetched this far ahead; a row's end runs into the next rows'.
  constexpr std::int64_t ahead = 1024;
  constexpr std::int64_t line_columns = half_byte(format) ? 128 : code_bytes(format, 1) == 1 ? 64 : column_group;
  for (std::int64_t line = 0; line < whole; line += line_columns) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) Simd::prefetch(rows[r].values + code_bytes(format, line) + ahead);
    const std::int64_t end = line + line_columns < whole ? line + line_columns : whole;
    for (std::int64_t k = line; k < end; k += column_group) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) add_group(call.x.data + k, rows[r], k, r);
    }
  }
  if (whole < columns) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Tail<format> tail(rows[r], columns);
      add_group(call.x.data + whole, {tail.values, tail.scales}, 0, r);
    }
  }
  if constexpr (has_nan_codes(format)) {
    if (nans.found()) {
      for (int r = 0; r < R; ++r) {
        if (!row_has_nan(rows[r], columns)) continue;
        for (int t = 0; t < T; ++t) sums[t][r] = Simd::all(__builtin_nanf(""));
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      call.out[t * call.out_stride + (row - call.first) + r] =
          Simd::sum(sums[t][r]) * factor_of(call, row + r, t, code_factor(format));
    }
  }
}

template <WeightFormat format, int T>
void direct(const MatmulCall& call) {
  constexpr int R = T == 1 ? (half_byte(format) ? 8 : 4) : T == 2 ? 4 : 3;
  const std::int64_t end = call.first + call.rows;
  std::int64_t row = call.first;
  for (; row + R <= end; row += R) direct_tile<format, T, R>(call, row);
  for (; row < end; ++row) direct_tile<format, T, 1>(call, row);
}

// Columns [k, k + count) of `rows` rows as fp32: panel[r · k_block + column].
template <WeightFormat format>
void widen_panel(const MatmulCall& call, std::int64_t k, std::int64_t count) {
  const std::int64_t columns = call.weight->columns;
  for (std::int64_t r = 0; r < call.rows; ++r) {
    const RowBytes bytes = row_of<format>(*call.weight, call.first + r);
    float* out = call.panel + r * k_block;
    for (std::int64_t at = 0; at < count; at += column_group) {
      V w[group_registers];
      if (k + at + column_group <= columns) {
        Simd::widen_group<format, true>(bytes.values, bytes.scales, k + at, w);
      } else {
        const Tail<format> tail(bytes, columns);
        Simd::widen_group<format, true>(tail.values, tail.scales, 0, w);
      }
      for (int i = 0; i < group_registers; ++i) Simd::store(out + at + i * L, w[i]);
    }
  }
}

// sums[t][r] continues over `count` columns; `stored` holds T·R registers between slices of K.
template <int T, int R>
void panel_tile(const float* x, std::int64_t x_stride, const float* w, std::int64_t count, bool first, float* stored) {
  V sums[T][R];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[t][r] = first ? Simd::zero() : Simd::load(stored + (t * R + r) * L);
  }
  for (std::int64_t k = 0; k < count; k += L) {
    V weights[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) weights[r] = Simd::load(w + r * k_block + k);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const V value = Simd::load(x + t * x_stride + k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[t][r] = Simd::fma(value, weights[r], sums[t][r]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) Simd::store(stored + (t * R + r) * L, sums[t][r]);
  }
}

struct PanelSlice {
  const float* x;  // [tokens, depth] of this slice
  std::int64_t depth;
  bool first;
};

// The panel's rows R at a time against T tokens; registers of a tile stand together in `stored`.
template <int T, int R>
void panel_rows(const MatmulCall& call, const PanelSlice& slice, std::int64_t token, float* stored) {
  std::int64_t r = 0;
  for (; r + R <= call.rows; r += R) {
    panel_tile<T, R>(slice.x + token * slice.depth, slice.depth, call.panel + r * k_block, slice.depth, slice.first,
                     stored + r * T * L);
  }
  if constexpr (R > 1) {
    for (; r < call.rows; ++r) {
      panel_tile<T, 1>(slice.x + token * slice.depth, slice.depth, call.panel + r * k_block, slice.depth, slice.first,
                       stored + r * T * L);
    }
  }
}

template <int T>
void panel_tokens(const MatmulCall& call, const PanelSlice& slice, std::int64_t token) {
  float* stored = call.sums + token * call.rows * L;
  for (; token + T <= call.x.tokens; token += T, stored += T * call.rows * L) {
    panel_rows<T, Simd::tile_rows>(call, slice, token, stored);
  }
  if constexpr (T > 1) {
    if (token < call.x.tokens) panel_tokens<T - 1>(call, slice, token);
  }
}

template <WeightFormat format>
void panel(const MatmulCall& call) {
  const std::int64_t padded = padded_columns(call.weight->columns);
  for (std::int64_t k = 0; k < padded; k += k_block) {
    const std::int64_t depth = padded - k < k_block ? padded - k : k_block;
    widen_panel<format>(call, k, depth);
    panel_tokens<Simd::tile_tokens>(call, {call.x.data + k * call.x.tokens, depth, k == 0}, 0);
  }
  // The registers stand as the tiles left them: [token tile][row tile][T][R].
  constexpr std::int64_t TT = Simd::tile_tokens;
  constexpr std::int64_t TR = Simd::tile_rows;
  const std::int64_t whole_rows = call.rows / TR * TR;
  const std::int64_t whole_tokens = call.x.tokens / TT * TT;
  for (std::int64_t token = 0; token < call.x.tokens; ++token) {
    const std::int64_t tile = token < whole_tokens ? token / TT * TT : whole_tokens;
    const std::int64_t tokens = token < whole_tokens ? TT : call.x.tokens - whole_tokens;
    for (std::int64_t row = 0; row < call.rows; ++row) {
      const std::int64_t row_tile = row < whole_rows ? row / TR * TR : row;
      const std::int64_t rows = row < whole_rows ? TR : 1;
      const float* at = call.sums + (tile * call.rows + row_tile * tokens + (token - tile) * rows + row - row_tile) * L;
      call.out[token * call.out_stride + row] =
          Simd::sum(Simd::load(at)) * factor_of(call, call.first + row, token, code_factor(format));
    }
  }
}

template <WeightFormat format>
void matmul_format(const MatmulCall& call) {
  switch (call.x.tokens) {
    case 0: return;
    case 1: return direct<format, 1>(call);
    case 2: return direct<format, 2>(call);
    case 3: return direct<format, 3>(call);
    case 4: return direct<format, 4>(call);
    default: return panel<format>(call);
  }
}

void matmul(const MatmulCall& call) {
  switch (call.weight->format) {
    case WeightFormat::f32: return matmul_format<WeightFormat::f32>(call);
    case WeightFormat::f16: return matmul_format<WeightFormat::f16>(call);
    case WeightFormat::bf16: return matmul_format<WeightFormat::bf16>(call);
    case WeightFormat::fp8: return matmul_format<WeightFormat::fp8>(call);
    case WeightFormat::mxfp8: return matmul_format<WeightFormat::mxfp8>(call);
    case WeightFormat::mxfp4: return matmul_format<WeightFormat::mxfp4>(call);
    case WeightFormat::nvfp4: return matmul_format<WeightFormat::nvfp4>(call);
  }
}

}  // namespace
}  // namespace m3::ops::cpu
