#include "src/ops/cpu/matmul.h"

#include <cstring>

namespace m3::ops::cpu {

void pack_token(const Kernels& kernels, const PanelNeeds& needs, const std::uint16_t* values, const PackedX& x,
                std::int64_t token, float* row) {
  const std::int64_t padded = padded_columns(x.columns);
  const auto place = [&](float* panel) {
    for (std::int64_t k = 0; k < padded; k += x.depth()) {
      const std::int64_t depth = std::min(x.depth(), padded - k);
      std::memcpy(panel + k * x.tokens + token * depth, row + k, static_cast<std::size_t>(depth) * sizeof(float));
    }
  };
  kernels.widen_bf16(values, x.columns, padded, row);
  if (needs.plain) place(x.plain);
  if (!needs.quantised) return;
  x.token_scales[token] = quantise_token(row, x.columns, row);
  place(x.quantised);
}

}  // namespace m3::ops::cpu
