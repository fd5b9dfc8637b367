// Reading and writing rows of cache pages in their stored type.
#pragma once

#include <cstdint>

#include "src/ops/ops.h"

namespace m3::ops {

// The run of one (page, head): [128 tokens][128] elements. index-K has head 0 only.
inline std::byte* page_run(const PagePart& part, std::int32_t page, std::int64_t head) {
  const auto run_bytes = std::int64_t{page_tokens} * head_dim * static_cast<std::int64_t>(dtype_size(part.dtype));
  return part.data + page * part.page_bytes + head * run_bytes;
}

// Slots [first, last) of a page, in the order that attention reads them; page -1 or first >= last = none.
struct KeyRun {
  std::int32_t page = -1;
  std::int64_t first = 0;
  std::int64_t last = 0;

  bool empty() const { return page < 0 || first >= last; }
};

// out[count · 128] <- the rows [slot, slot + count) of a run, fp8 codes times `scale`.
void read_cache_rows(const PagePart& part, std::int32_t page, std::int64_t head, std::int64_t slot, std::int64_t count,
                     float scale, float* out);

// One row into its slot: rounded once to the stored type, for fp8 as e4m3(value / scale), saturating (spec
// §3.6).
void write_cache_row(const PagePart& part, std::int32_t page, std::int64_t head, std::int64_t slot, float scale,
                     const float* row);

}  // namespace m3::ops
