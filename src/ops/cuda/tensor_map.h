// Descriptions of matrices in device memory for Hopper's tensor copies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::ops::cuda {

// As the driver encodes it.
struct alignas(64) TensorMap {
  std::byte bytes[128];
};

// A matrix of `rows` rows of `columns` elements of `element_bytes` (1 or 2), `row_bytes` apart; copies take boxes of
// box_rows × box_columns. `swizzle`: 0, 32, 64 or 128 bytes, as the pieces of 16 bytes are to lie in shared memory.
// False where the driver cannot or the matrix does not fit: base or rows not at 16 bytes.
bool encode_tensor_map(TensorMap& map, const void* base, int element_bytes, std::int64_t rows, std::int64_t columns,
                       std::int64_t row_bytes, int box_rows, int box_columns, int swizzle);

// A matrix of bf16 in steps of 64 columns: a copy takes a box of `box_steps` steps one after another, each of `box_rows` rows
// of 128 bytes, swizzled by 128.
bool encode_steps_map(TensorMap& map, const void* base, std::int64_t rows, std::int64_t columns, std::int64_t row_bytes,
                      int box_rows, int box_steps);

}  // namespace m3::ops::cuda
