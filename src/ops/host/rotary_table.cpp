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

void HostBackend::vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                                      const Tensor& table) {
  const auto rows = static_cast<std::int64_t>(positions.size() / 3);
  const auto frequencies = static_cast<std::int64_t>(inv_freq.size());
  if (3 * frequencies != vision_rotary_pairs) fail_internal("vision_rotary_table: {} frequencies", frequencies);
  check_tensor(table, DType::f32, rows, 2 * vision_rotary_pairs, "vision_rotary_table");
  pool_.split(rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t patch = begin; patch < end; ++patch) {
      auto* row = reinterpret_cast<float*>(table.row(patch));
      for (std::int64_t pair = 0; pair < vision_rotary_pairs; ++pair) {
        const auto position = static_cast<float>(positions[static_cast<std::size_t>(patch * 3 + pair / frequencies)]);
        const float angle = position * inv_freq[static_cast<std::size_t>(pair % frequencies)];
        row[pair] = std::cos(angle);
        row[vision_rotary_pairs + pair] = std::sin(angle);
      }
    }
  });
}

}  // namespace m3::ops
