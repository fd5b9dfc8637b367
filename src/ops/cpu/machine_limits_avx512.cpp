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

// The hardware prefetcher stops at page borders; asking 4 KiB ahead keeps the reads going across them.
std::uint64_t read_loop_avx512(const std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t width = 64;
  constexpr std::int64_t ahead = 4096;
  __m512i sums[8];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  for (std::int64_t at = 0; at < bytes; at += 8 * width) {
    for (std::int64_t line = 0; line < 8 * width; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(data + at + ahead + line), _MM_HINT_T0);
    }
    for (std::int64_t i = 0; i < 8; ++i) {
      sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(reinterpret_cast<const __m512i*>(data + at + i * width)));
    }
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm512_add_epi64(sums[0], sums[i]);
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, sums[0]);
  return lanes[0] + lanes[7];
}

}  // namespace m3::ops::detail
