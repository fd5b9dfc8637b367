// Products with weights as they are stored, for every operation that has one: y = x · Wᵀ for several W concatenated by
// rows, for one list of rows of x or for groups of them (experts), by kernels that never allocate.
//
// One order of summation for any number of rows: K is cut into eight segments of whole steps of 64, each summed on the
// tensor cores in ascending order, and the eight sums are added in order. Every kernel here keeps it, so that a row's
// bits do not depend on which kernel ran; Hopper's own (*_sm90) need not, and are left out where `fixed_order` is set.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/base/weight_matrix.h"

namespace m3::ops::cuda {

inline constexpr int max_parts = 8;       // weights concatenated in one call
inline constexpr int step_columns = 64;   // of K
inline constexpr int k_segments = 8;      // of K, summed apart
inline constexpr int prefill_tile = 128;  // rows of x, and rows of W, of one block of threads

struct WeightMaps;  // matmul_sm90.h

// A weight on the device.
struct WeightPart {
  const std::byte* values = nullptr;
  const std::byte* scales = nullptr;
  const float* row_scales = nullptr;
  float tensor_scale = 1;
  std::int32_t rows = 0;
  std::int32_t first_column = 0;  // of the result
  WeightFormat format = WeightFormat::bf16;
};

inline WeightPart part_of(const WeightMatrix& weight, std::int64_t first_column) {
  return {weight.values,
          weight.scales,
          weight.row_scales,
          weight.tensor_scale,
          static_cast<std::int32_t>(weight.rows),
          static_cast<std::int32_t>(first_column),
          weight.format};
}

enum class Store : std::int32_t {
  bf16,             // rounded
  f32,              // as it is
  weighted,         // f32, times scaling · pair_weights[pair]
  weighted_halves,  // the same, rounded (many items only)
  activated,  // two parts, gate and up, of equal size: swigluoai of the two rounded results, rounded (few items only)
};

struct MatmulArgs {
  // Weights: `parts` of a group lie at table[group · parts]; table null: `inline_parts`, one group.
  const WeightPart* table = nullptr;
  const WeightMaps* maps = nullptr;       // of `table`, in its order, for the kernels of many rows
  const WeightMaps* tall_maps = nullptr;  // likewise, for those of matmul_narrow_sm90.h
  WeightPart inline_parts[max_parts];
  int parts = 0;
  int columns = 0;  // K
  // Rows of x. With a list, item i of it is row list[i] / list_divisor of x; without, item i is row i.
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  const float* token_scales = nullptr;  // [rows of x]: a factor of each result (quantised activations)
  const std::int32_t* list = nullptr;
  int list_divisor = 1;
  bool x_by_list = true;        // false: x has been gathered, row i of it is item i's
  bool result_by_list = false;  // item i is written to row list[i], else to row i
  // Items: of one group, or of groups (device memory): group g has items group_begin[g] .. group_begin[g + 1].
  std::int32_t items = 0;  // one group: how many; groups: at most
  int groups = 0;          // 0: one group
  const std::int32_t* group_begin = nullptr;
  const std::int32_t* active = nullptr;  // [min(groups, items)] groups with items, -1 padded
  // Instead of lists, for few items (direct_items at most): the experts that the items chose, in device memory. The block
  // of an expert's first item takes all items of that expert; group_of_expert [expert_count], null: group = expert.
  const std::int32_t* expert_ids = nullptr;
  const std::int32_t* group_of_expert = nullptr;
  int first_expert = 0;
  int expert_count = 0;
  const std::int32_t* tile_group = nullptr;  // [prefill_tiles(items, groups)], -1 padded
  const std::int32_t* tile_begin = nullptr;  // likewise: first item
  // Result.
  Store store = Store::bf16;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  const float* bias = nullptr;  // [columns of the result]
  const float* pair_weights = nullptr;
  float scaling = 1;
  float alpha = 0, limit = 0, beta = 0;  // of the activation
  bool gelu = false;                     // of the rounded result, rounded again (many items only, bf16)
  bool arranged = false;                 // x, and an activated result: see takes_arranged (matmul_sm90.h)
  bool fixed_order = false;              // the one order of summation, whatever is faster
  // For sums that blocks of threads share (matmul_narrow_sm90.h): narrow_partial_floats(items) of them, and
  // narrow_counters that are zero before and after. Null: not shared.
  float* partials = nullptr;
  unsigned* counters = nullptr;
  // What was there before the kernel ahead of this one began, where that is one of matmul_decode_sm90.h: it may be read
  // before that one has ended.
  bool old_routing = false;  // expert_ids
  bool old_x = false;
};

inline constexpr int direct_items = 256;  // what the kernels' tables hold
inline constexpr int direct_worth = 64;   // beyond, blocks that find no expert of their own cost more than making lists
// Up to these many items, of one list, results can be stored activated.
inline constexpr int activated_items = 8;

inline int prefill_tiles(int items, int groups) {
  const int whole = (items + prefill_tile - 1) / prefill_tile;
  return groups > 0 ? whole + groups : whole;
}

// Whether the fast kernels take the shapes: K in whole steps, rows at 16 bytes. Direct items and activated results need
// them.
bool fits_tensor_cores(const MatmulArgs& args);

// Launches what fits the shapes; parts of different formats get a launch each. At most one group of formats where
// `table` is given: `inline_parts` then describe the parts of every group (rows, columns, format).
// Returns the launch error, if any.
cudaError_t matmul(const MatmulArgs& args, cudaStream_t stream);

// The kernels by format; `args` holds parts of that one format. Defined in matmul_sm80_<format>.cu.
template <WeightFormat Format>
cudaError_t matmul_of(const MatmulArgs& args, cudaStream_t stream);
extern template cudaError_t matmul_of<WeightFormat::f32>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_of<WeightFormat::f16>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_of<WeightFormat::bf16>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_of<WeightFormat::fp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_of<WeightFormat::mxfp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_of<WeightFormat::mxfp4>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_of<WeightFormat::nvfp4>(const MatmulArgs&, cudaStream_t);

}  // namespace m3::ops::cuda
