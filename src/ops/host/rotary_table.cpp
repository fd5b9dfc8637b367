#include <cmath>

#include "src/base/error.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops {

// 1 / θ^(2i/d) with every step in fp32, as the reference does; another form moves angles by up to 0.002 rad
// at 2^20.
void plain_inverse_frequencies(double theta, std::span<float> inv_freq) {
  const auto base = static_cast<float>(theta);
  const auto rotary_dim = static_cast<float>(2 * inv_freq.size());
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = 1.0f / std::pow(base, static_cast<float>(2 * i) / rotary_dim);
  }
}

void HostBackend::rotary_table(const Batch& batch, std::span<const float> inv_freq, float attention_factor,
                               const Tensor& table) {
  const auto half = static_cast<std::int64_t>(inv_freq.size());
  check_tensor(table, DType::f32, batch.tokens, 2 * half, "rotary_table");
  pool_.split(batch.tokens, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) {
      auto* row = reinterpret_cast<float*>(table.row(token));
      const auto position = static_cast<float>(batch.positions[token]);
      for (std::int64_t i = 0; i < half; ++i) {
        const float angle = position * inv_freq[static_cast<std::size_t>(i)];
        row[i] = std::cos(angle) * attention_factor;
        row[half + i] = std::sin(angle) * attention_factor;
      }
    }
  });
}

}  // namespace m3::ops
