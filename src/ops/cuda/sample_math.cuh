// What both kernels of `sample` share: the order of logits and the draw.
#pragma once

#include "src/ops/cuda/device.cuh"

namespace m3::ops::cuda {

__device__ inline bool drawable(float logit) { return fabsf(logit) <= 3.402823466e38f; }

// Orders floats as integers; 0 for what cannot be drawn.
__device__ inline std::uint32_t draw_key(float value) {
  if (!drawable(value)) return 0;
  std::uint32_t bits = __float_as_uint(value);
  if (bits == 0x80000000u) bits = 0;  // -0 ties with 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Uniform in [0, 1) with 53 random bits: host/sampler's draw (Philox 4x32-10).
__device__ inline double uniform_draw(std::uint64_t seed, std::uint32_t sample, std::int64_t position) {
  std::uint32_t counter[4] = {static_cast<std::uint32_t>(position),
                              static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), sample, 0};
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const std::uint64_t bits = (std::uint64_t{counter[0]} << 32 | counter[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace m3::ops::cuda
