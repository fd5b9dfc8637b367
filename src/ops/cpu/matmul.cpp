#include "src/ops/cpu/matmul.h"

#include <cstring>

namespace m3::ops::cpu {

void pack_token(const Kernels& kernels, const std::uint16_t* values, const PackedX& x, std::int64_t token, float* row) {
  const std::int64_t padded = padded_columns(x.columns);
  const auto place = [&](Arrangement arrangement) {
    for (std::int64_t k = 0; k < padded; k += x.depth()) {
      const std::int64_t depth = std::min(x.depth(), padded - k);
      std::memcpy(x.panel(arrangement) + k * x.tokens + token * depth, row + k,
                  static_cast<std::size_t>(depth) * sizeof(float));
    }
  };
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
