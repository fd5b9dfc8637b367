#include <immintrin.h>

#include "src/ops/machine_limits.h"

namespace m3::ops::detail {

// 12 independent chains cover an FMA latency of 4 or 5 cycles on two ports.
double fma_loop_avx2(std::int64_t rounds, float& sink) {
  const __m256 a = _mm256_set1_ps(0.999f);
  const __m256 b = _mm256_set1_ps(0.001f);
  __m256 sums[12];
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  for (const auto& sum : sums) sink += _mm256_cvtss_f32(sum);
  return static_cast<double>(rounds) * 12 * 8 * 2;
}

}  // namespace m3::ops::detail
