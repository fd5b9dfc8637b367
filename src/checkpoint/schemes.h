// Which number format a stored matrix is in, told from dtypes and shapes alone (spec §2.4-2.6, addenda §6, §13).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "src/base/weight_matrix.h"
#include "src/checkpoint/aligned_store.h"
#include "src/checkpoint/problems.h"
#include "src/checkpoint/safetensors.h"

namespace m3 {

// The tensors stored for one linear; nullptr where there is none.
struct LinearTensors {
  const StoredTensor* weight = nullptr;
  const StoredTensor* weight_packed = nullptr;  // M3.1's spelling of 4-bit codes
  const StoredTensor* weight_scale = nullptr;   // weight_scale_inv and scale as well
  const StoredTensor* weight_scale_2 = nullptr;
  const StoredTensor* weight_global_scale = nullptr;
  const StoredTensor* input_scale = nullptr;         // checked, unused: activations are not quantised by it
  const StoredTensor* input_global_scale = nullptr;  // likewise
};

// The matrix that `tensors` hold: sizes `lead`, then `columns` (a packed expert tensor has two leading sizes, which
// become rows one after the other). What is wrong goes to `problems`, under `name`; then nothing is returned.
//   plain   F32, F16, BF16 [N, K], no scales
//   mxfp8   F8_E4M3 [N, K] + U8 [N, K/32]
//   fp8     F8_E4M3 [N, K] + F32 [N] (or [N, 1]), or F32 of one element
//   mxfp4   U8 [N, K/2] + U8 [N, K/32]
//   nvfp4   U8 [N, K/2] + F8_E4M3 [N, K/16] + F32 weight_scale_2 of one element; or, as weight_packed, with
//           weight_global_scale, which divides
std::optional<WeightMatrix> resolve_linear(const std::string& name, const LinearTensors& tensors,
                                           std::span<const std::int64_t> lead, std::int64_t columns,
                                           AlignedStore& store, ProblemList& problems);

// An unquantised matrix [rows, columns] (embedding, head, router).
std::optional<WeightMatrix> resolve_plain(const StoredTensor& tensor, std::int64_t rows, std::int64_t columns,
                                          AlignedStore& store, ProblemList& problems);

// The one element of an F32, F16 or BF16 tensor of shape [] or [1]; problems where it is none, or not finite, or
// below `lowest`.
std::optional<float> resolve_scalar(const StoredTensor& tensor, float lowest, ProblemList& problems);

bool is_plain(WeightFormat format);  // f32, f16, bf16
bool is_plain(DType dtype);

}  // namespace m3
