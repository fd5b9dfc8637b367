// y = x · Wᵀ for one instruction set. Included by *_avx2.cpp and *_avx512.cpp after their Simd.
//
// One order of summation for any number of tokens and rows: a dot product keeps one register, whose lane j sums the
// columns k = j (mod lanes) in ascending order by fused multiply-add, and adds its lanes in a fixed tree at the end.
// Few tokens (direct) and many (panel) differ in where the widened weights live, never in that order.
#pragma once

#include "src/ops/cpu/kernels.h"

namespace m3::ops::cpu {
namespace {

constexpr int group_registers = 4;
constexpr std::int64_t group = Simd::group_columns;
static_assert(group == group_registers * L && column_group % group == 0);

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
  std::byte scales[column_group / 16] = {};

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

// Whether a row has block scales that widen_group takes only with `checked`.
template <WeightFormat format>
bool has_large_scales(const RowBytes& row, std::int64_t columns) {
  std::uint8_t largest = 0;
  if constexpr (format == WeightFormat::mxfp8) {
    for (std::int64_t i = 0; i < columns / 32; ++i) {
      const auto scale = static_cast<std::uint8_t>(row.scales[i]);
      largest = scale > largest ? scale : largest;
    }
  }
  return largest > plain_scale;
}

// T tokens times R rows, straight from the stored weights.
template <WeightFormat format, int T, int R, bool checked>
void direct_tile(const MatmulCall& call, std::int64_t row) {
  const WeightMatrix& weight = *call.weight;
  const std::int64_t columns = weight.columns;
  const std::int64_t whole = columns / column_group * column_group;
  const std::int64_t row_bytes = code_bytes(format, columns);
  const std::int64_t row_scale_bytes = scale_bytes(format, columns);
  const RowBytes first = row_of<format>(weight, row);
  V sums[T][R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t][r] = Simd::zero();
  }
  [[maybe_unused]] typename Simd::NanScan nans;
  // One token's x stays in registers for all rows.
  const auto add_group = [&](const float* x, const V(&kept)[group_registers], const RowBytes& bytes, std::int64_t k,
                             int r) __attribute__((always_inline)) {
    V w[group_registers];
    Simd::widen_group<format, checked>(bytes.values, bytes.scales, k, w);
    if constexpr (has_nan_codes(format) && !checked) nans.add(bytes.values + k);
#pragma GCC unroll 8
    for (int i = 0; i < group_registers; ++i) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        sums[t][r] = Simd::fma(T == 1 ? kept[i] : Simd::load(x + t * call.x.depth + i * L), w[i], sums[t][r]);
      }
    }
  };
  const auto keep = [](const float* x, V(&kept)[group_registers]) __attribute__((always_inline)) {
    if constexpr (T == 1) {
#pragma GCC unroll 8
      for (int i = 0; i < group_registers; ++i) kept[i] = Simd::load(x + i * L);
    }
  };
  // While R rows are multiplied, the R rows after them come into the second-level cache, line by line.
  constexpr std::int64_t line_columns = half_byte(format) ? 128 : code_bytes(format, 1) == 1 ? 64 : 32;
  constexpr std::int64_t step = line_columns < group ? group : line_columns;
  const std::byte* next = first.values + R * row_bytes;
  if constexpr (scale_bytes(format, 32) > 0) {
    for (std::int64_t at = 0; at < R * row_scale_bytes; at += 64) {
      Simd::prefetch_far(first.scales + R * row_scale_bytes + at);
    }
  }
  for (std::int64_t line = 0; line < whole; line += step) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      for (std::int64_t at = 0; at < step; at += line_columns) {
        Simd::prefetch_far(next + r * row_bytes + code_bytes(format, line + at));
      }
    }
    const std::int64_t end = line + step < whole ? line + step : whole;
    for (std::int64_t k = line; k < end; k += group) {
      V kept[group_registers];
      keep(call.x.data + k, kept);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        add_group(call.x.data + k, kept, {first.values + r * row_bytes, first.scales + r * row_scale_bytes}, k, r);
      }
    }
  }
  if (whole < columns) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Tail<format> tail(row_of<format>(weight, row + r), columns);
      for (std::int64_t k = 0; k < column_group; k += group) {
        V kept[group_registers];
        keep(call.x.data + whole + k, kept);
        add_group(call.x.data + whole + k, kept, {tail.values, tail.scales}, k, r);
      }
    }
  }
  if constexpr (has_nan_codes(format) && !checked) {
    if (nans.found()) {
      for (int r = 0; r < R; ++r) {
        if (!row_has_nan(row_of<format>(weight, row + r), columns)) continue;
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
  constexpr int R = T == 1 || T == 2 ? 4 : 3;
  const std::int64_t end = call.first + call.rows;
  std::int64_t row = call.first;
  while (row < end) {
    const bool tile = row + R <= end;
    const std::int64_t rows = tile ? R : 1;
    bool checked = false;
    for (std::int64_t r = row; r < row + rows; ++r) {
      checked = checked || has_large_scales<format>(row_of<format>(*call.weight, r), call.weight->columns);
    }
    if (checked) {
      for (std::int64_t r = row; r < row + rows; ++r) direct_tile<format, T, 1, true>(call, r);
    } else if (tile) {
      direct_tile<format, T, R, false>(call, row);
    } else {
      direct_tile<format, T, 1, false>(call, row);
    }
    row += rows;
  }
}

// Columns [k, k + count) of `rows` rows as fp32: panel[r · k_block + column].
template <WeightFormat format>
void widen_panel(const MatmulCall& call, std::int64_t k, std::int64_t count) {
  const std::int64_t columns = call.weight->columns;
  for (std::int64_t r = 0; r < call.rows; ++r) {
    const RowBytes bytes = row_of<format>(*call.weight, call.first + r);
    float* out = call.panel + r * k_block;
    // The next slice of the panel's rows, or the first slice of the rows after them, comes while this one is computed.
    const std::byte* next = k + k_block < columns ? bytes.values + code_bytes(format, k + k_block)
                                                  : bytes.values + call.rows * code_bytes(format, columns);
    for (std::int64_t at = 0; at < code_bytes(format, k_block); at += 64) Simd::prefetch_far(next + at);
    const std::int64_t left = columns - k;  // padded columns follow
    const std::int64_t whole = count <= left ? count : left / column_group * column_group;
    const auto widen = [&](const RowBytes& from, std::int64_t column, std::int64_t at) {
      V w[group_registers];
      Simd::widen_group<format, true>(from.values, from.scales, column, w);
      for (int i = 0; i < group_registers; ++i) Simd::store(out + at + i * L, w[i]);
    };
    for (std::int64_t at = 0; at < whole; at += group) widen(bytes, k + at, at);
    if (whole == count) continue;
    const Tail<format> tail(bytes, columns);
    for (std::int64_t at = 0; at < column_group; at += group) widen({tail.values, tail.scales}, at, whole + at);
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
