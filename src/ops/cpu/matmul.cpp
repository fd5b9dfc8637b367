#include "src/ops/cpu/matmul.h"

#include <cstring>

namespace m3::ops::cpu {

void pack_token(const Kernels& kernels, const std::uint16_t* values, const PackedX& x, std::int64_t token, float* row) {
  const std::int64_t padded = padded_columns(x.columns);
  const auto for_each_slice = [&](Arrangement arrangement, const auto& place) {
    for (std::int64_t k = 0; k < padded; k += x.depth()) {
      const std::int64_t depth = std::min(x.depth(), padded - k);
      place(row + k, depth, x.panel(arrangement) + k * x.tokens + token * depth);
    }
  };
  const auto copy = [](const float* from, std::int64_t depth, float* to) {
    std::memcpy(to, from, static_cast<std::size_t>(depth) * sizeof(float));
  };
  kernels.widen_bf16(values, x.columns, padded, row);
  if (x.needs(Arrangement::plain)) for_each_slice(Arrangement::plain, copy);
  if (x.needs(Arrangement::paired)) {
    for_each_slice(Arrangement::paired, [](const float* from, std::int64_t depth, float* to) {
      for (std::int64_t k = 0; k < depth; k += 8) {
        for (int i = 0; i < 4; ++i) {
          to[k + i] = from[k + 2 * i];
          to[k + 4 + i] = from[k + 2 * i + 1];
        }
      }
    });
  }
  if (!x.needs(Arrangement::quantised)) return;
  x.token_scales[token] = quantise_token(row, x.columns, row);
  for_each_slice(Arrangement::quantised, copy);
}

}  // namespace m3::ops::cpu
