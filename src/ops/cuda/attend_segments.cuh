// What the kernels of the vision tower's attention share.
#pragma once

#include "src/ops/cuda/attention.cuh"
#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

// The rows that row `row` of packed sees: first and past the last. A row of no segment sees none.
struct Seen {
  int begin, end;
};
__device__ inline Seen segment_of_row(const VisionAttendArgs& args, int row) {
  int low = 0, high = args.segments;  // the last s with segment_begin[s] <= row lies in low - 1 … high
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (args.segment_begin[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int begin = args.segment_begin[low];
  if (low == args.segments || row < begin) return {0, 0};
  return {begin, args.segment_begin[low + 1]};
}

}  // namespace m3::ops::cuda
