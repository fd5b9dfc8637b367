#include "src/ops/cpu/matmul.h"

#include <cstring>

#include "src/base/error.h"

namespace m3::ops::cpu {

namespace {

// A row of padded_columns(x.columns) values, slice by slice.
void place_row(const PackedX& x, Arrangement arrangement, std::int64_t token, const float* row) {
  const std::int64_t padded = padded_columns(x.columns);
  for (std::int64_t k = 0; k < padded; k += x.depth()) {
    const std::int64_t depth = std::min(x.depth(), padded - k);
    std::memcpy(x.panel(arrangement) + k * x.tokens + token * depth, row + k,
                static_cast<std::size_t>(depth) * sizeof(float));
  }
}

}  // namespace

void pack_token(const Kernels&, const float* values, const PackedX& x, std::int64_t token, float* row) {
  if (x.needs(Arrangement::interleaved) || x.needs(Arrangement::quantised)) {
    fail_internal("a product of fp32 rows with a weight that takes rounded ones");
  }
  std::copy(values, values + x.columns, row);
  std::fill(row + x.columns, row + padded_columns(x.columns), 0.0f);
  place_row(x, Arrangement::plain, token, row);
}

void pack_token(const Kernels& kernels, const std::uint16_t* values, const PackedX& x, std::int64_t token, float* row) {
  const std::int64_t padded = padded_columns(x.columns);
  const auto place = [&](Arrangement arrangement) { place_row(x, arrangement, token, row); };
  if (x.needs(Arrangement::interleaved)) {
    kernels.interleave(values, x.columns, padded, row);
    place(Arrangement::interleaved);
  }
  if (!x.needs(Arrangement::plain) && !x.needs(Arrangement::quantised)) return;
  kernels.widen_bf16(values, x.columns, padded, row);
  if (x.needs(Arrangement::plain)) place(Arrangement::plain);
  if (!x.needs(Arrangement::quantised)) return;
  x.token_scales[token] = quantise_token(row, x.columns, row);
  if (kernels.interleaved(WeightFormat::fp8)) {
    // e4m3 values are bf16 values too. `row` has room for both: the halves go to its end.
    auto* halves = reinterpret_cast<std::uint16_t*>(row + padded);
    kernels.round_bf16(row, x.columns, halves);
    kernels.interleave(halves, x.columns, padded, row);
  }
  place(Arrangement::quantised);
}

}  // namespace m3::ops::cpu
