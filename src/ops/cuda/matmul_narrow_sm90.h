// Products of 9 to 64 rows of x a weight on Hopper, by W in registers: what matmul.cu and mlp.cpp need of them.
#pragma once

#include "src/ops/cuda/matmul.h"
#include "src/ops/cuda/matmul_narrow_plan.h"

namespace m3::ops::cuda {

// --- What is taken: where an H200 was faster than by the other kernels (bench/results). ---------------------------------

// Items of one list, at least; narrow_items (64) at most. 65: none. On an H200, us of 6144 -> 9856 and 8192 -> 6144 MXFP8
// for 9, 32, 48 and 64 items: here 38.3, 42.8, 45.9, 49.8 and 30.3, 35.1, 38.0, 42.1; by the others 39.1, 43.8, 198, 47.8
// and 28.3, 31.1, 234, 60.7, since they take 8, 16, 32 or 64 and more at once. bf16 loses everywhere (47.8 for 38.9).
constexpr int narrow_least_items(WeightFormat format) {
  switch (format) {
    case WeightFormat::mxfp8:
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4:
    case WeightFormat::fp8: return 33;
    default: return narrow_items + 1;
  }
}
// Items of a group on average, at least and at most; a group with more than narrow_items is several tiles. 0: none. 128
// experts of 6144 x 3072, us by these kernels (and by the others), 3, 4, 8, 16, 32, 64 items a group:
//   mxfp4  1810 (1310)  1612 (1673)  1625 (2081)  1730 (2684)  1913 (2819)  3373 (3146)
//   mxfp8  2243 (2300)  2041 (2454)  2027 (3328)  2146 (3356)  2522 (3397)  4028 (3895)
constexpr int narrow_least_of_group(WeightFormat format) { return format == WeightFormat::mxfp8 ? 3 : 4; }
constexpr int narrow_most_of_group(WeightFormat format) {
  switch (format) {
    case WeightFormat::mxfp8:
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4: return 48;
    default: return 0;
  }
}

// -----------------------------------------------------------------------------------------------------------------------

inline constexpr int narrow_most_groups = 256;
inline constexpr int narrow_most_blocks = 256;
inline constexpr int narrow_counters = narrow_most_blocks * narrow_groups_of_warps;

// Whether the device is Hopper and its driver describes tensors as these kernels copy them.
bool has_narrow_kernels();
// Whether so many items of so many groups, by weights of K columns, are better multiplied here.
bool narrow_takes_groups(WeightFormat format, std::int64_t items, int groups, std::int64_t columns);
// Whether the shapes fit, as takes_wide says; groups need `tall_maps`, a list `partials` and `counters`.
bool takes_narrow(const MatmulArgs& args);
cudaError_t matmul_narrow(const MatmulArgs& args, cudaStream_t stream);
// How the copies of a group's weight are described.
bool encode_tall_weight(WeightMaps& maps, const WeightPart& weight, int columns);
// Of `partials`, for lists of up to so many items.
std::int64_t narrow_partial_floats(std::int64_t items);

// By format, as matmul_of.
template <WeightFormat Format>
cudaError_t matmul_narrow_of(const MatmulArgs& args, cudaStream_t stream);
extern template cudaError_t matmul_narrow_of<WeightFormat::bf16>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_narrow_of<WeightFormat::fp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_narrow_of<WeightFormat::mxfp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_narrow_of<WeightFormat::mxfp4>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_narrow_of<WeightFormat::nvfp4>(const MatmulArgs&, cudaStream_t);

}  // namespace m3::ops::cuda
