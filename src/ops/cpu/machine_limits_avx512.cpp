#include <immintrin.h>

#include "src/ops/machine_limits.h"

namespace m3::ops::detail {

double fma_loop_avx512(std::int64_t rounds, float& sink) {
  const __m512 a = _mm512_set1_ps(0.999f);
  const __m512 b = _mm512_set1_ps(0.001f);
  __m512 sums[12];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  for (const auto& sum : sums) sink += _mm512_cvtss_f32(sum);
  return static_cast<double>(rounds) * 12 * 16 * 2;
}

}  // namespace m3::ops::detail
