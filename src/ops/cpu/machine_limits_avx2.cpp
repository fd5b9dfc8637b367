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

// The hardware prefetcher stops at page borders; asking 4 KiB ahead keeps the reads going across them.
std::uint64_t read_loop_avx2(const std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t width = 32;
  constexpr std::int64_t ahead = 4096;
  __m256i sums[8];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (std::int64_t at = 0; at < bytes; at += 8 * width) {
    for (std::int64_t line = 0; line < 8 * width; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(data + at + ahead + line), _MM_HINT_T0);
    }
    for (std::int64_t i = 0; i < 8; ++i) {
      sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + i * width)));
    }
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

}  // namespace m3::ops::detail
