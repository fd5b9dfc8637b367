#include <algorithm>

#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/device_calls.h"
#include "src/ops/cuda/fill_random.h"

namespace m3::ops::cuda {

namespace {

constexpr int threads = 256;
constexpr std::int64_t most_blocks = 132 * 16;

// As seeded_word() of src/base/random_fill.h.
__device__ std::uint64_t word_of(std::uint64_t key, std::uint64_t index) {
  std::uint64_t x = key + (index + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ double unit(std::uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

__device__ float value_of(std::uint64_t word, float scale) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 40) - (1 << 23)) * scale;
}

// The bits of element `index`, in the low bytes.
template <RandomFill::Kind kind>
__device__ std::uint32_t element(const RandomFill& fill, float scale, std::int64_t index) {
  const std::uint64_t word = word_of(fill.key, static_cast<std::uint64_t>(index));
  if constexpr (kind == RandomFill::Kind::f32) return __float_as_uint(value_of(word, scale));
  if constexpr (kind == RandomFill::Kind::bf16) return narrow_bf16(value_of(word, scale));
  if constexpr (kind == RandomFill::Kind::f8_e4m3) return narrow_e4m3(value_of(word, scale));
  if constexpr (kind == RandomFill::Kind::e8m0) return fill.base + (unit(word) < fill.parameter ? 1u : 0u);
  return __float_as_uint(static_cast<float>(fill.parameter * (0.5 + unit(word))));  // row_scales
}

template <RandomFill::Kind kind, typename T>
__global__ void fill_elements(RandomFill fill, float scale, std::int64_t count, T* out) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = static_cast<T>(element<kind>(fill, scale, i));
  }
}

__global__ void fill_bytes(RandomFill fill, std::int64_t count, std::byte* out) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 8 == 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i * 8 < count; i += step) {
    const std::uint64_t eight = (word_of(fill.key, static_cast<std::uint64_t>(i)) & fill.mask) | fill.set;
    if (aligned && i * 8 + 8 <= count) {
      *reinterpret_cast<std::uint64_t*>(out + i * 8) = eight;
    } else {
      for (std::int64_t b = i * 8; b < min(count, i * 8 + 8); ++b)
        out[b] = static_cast<std::byte>(eight >> (8 * (b - i * 8)));
    }
  }
}

template <RandomFill::Kind kind, typename T>
void launch(std::span<std::byte> to, const RandomFill& fill, cudaStream_t stream) {
  const std::int64_t count = static_cast<std::int64_t>(to.size() / sizeof(T));
  const auto blocks = static_cast<unsigned>(std::clamp((count + threads - 1) / threads, std::int64_t{1}, most_blocks));
  fill_elements<kind><<<blocks, threads, 0, stream>>>(fill, static_cast<float>(fill.parameter / 8388608.0), count,
                                                      reinterpret_cast<T*>(to.data()));
}

}  // namespace

void fill_random(std::span<std::byte> to, const RandomFill& fill, cudaStream_t stream) {
  using Kind = RandomFill::Kind;
  switch (fill.kind) {
    case Kind::f32: launch<Kind::f32, std::uint32_t>(to, fill, stream); break;
    case Kind::bf16: launch<Kind::bf16, std::uint16_t>(to, fill, stream); break;
    case Kind::f8_e4m3: launch<Kind::f8_e4m3, std::uint8_t>(to, fill, stream); break;
    case Kind::e8m0: launch<Kind::e8m0, std::uint8_t>(to, fill, stream); break;
    case Kind::row_scales: launch<Kind::row_scales, std::uint32_t>(to, fill, stream); break;
    case Kind::bytes: {
      const auto count = static_cast<std::int64_t>(to.size());
      const std::int64_t words = (count + 7) / 8;
      const auto blocks =
          static_cast<unsigned>(std::clamp((words + threads - 1) / threads, std::int64_t{1}, most_blocks));
      fill_bytes<<<blocks, threads, 0, stream>>>(fill, count, to.data());
      break;
    }
  }
  check(cudaGetLastError(), "making random bytes");
}

}  // namespace m3::ops::cuda
