#include "src/ops/cuda/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

namespace m3::ops::cuda {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's own function: the program links the runtime alone.
Encode find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

bool encode_tensor_map(TensorMap& map, const void* base, int element_bytes, std::int64_t rows, std::int64_t columns,
                       std::int64_t row_bytes, int box_rows, int box_columns, int swizzle) {
  static const Encode encode = find_encoder();
  if (encode == nullptr || reinterpret_cast<std::uintptr_t>(base) % 16 != 0 || row_bytes % 16 != 0) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUtensorMapSwizzle mode = swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                  : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                  : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                  : CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMap made;
  const CUresult result =
      encode(&made, element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
             const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, mode,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  std::memcpy(&map, &made, sizeof(map));
  return result == CUDA_SUCCESS;
}

bool encode_steps_map(TensorMap& map, const void* base, std::int64_t rows, std::int64_t columns, std::int64_t row_bytes,
                      int box_rows, int box_steps) {
  static const Encode encode = find_encoder();
  if (encode == nullptr || reinterpret_cast<std::uintptr_t>(base) % 16 != 0 || row_bytes % 16 != 0) return false;
  const cuuint64_t sizes[] = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / 64)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes), 128};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_steps)};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap made;
  const CUresult result = encode(&made, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(base), sizes, strides,
                                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  std::memcpy(&map, &made, sizeof(map));
  return result == CUDA_SUCCESS;
}

}  // namespace m3::ops::cuda
