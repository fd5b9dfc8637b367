#include "src/ops/host/pages.h"

#include <cstring>

#include "src/base/error.h"

namespace m3::ops {

void read_cache_rows(const PagePart& part, std::int32_t page, std::int64_t head, std::int64_t slot, std::int64_t count,
                     float scale, float* out) {
  const std::byte* run = page_run(part, page, head);
  const std::int64_t begin = slot * head_dim;
  const std::int64_t elements = count * head_dim;
  switch (part.dtype) {
    case DType::f32: std::memcpy(out, run + begin * 4, static_cast<std::size_t>(elements) * 4); return;
    case DType::bf16: {
      const auto* values = reinterpret_cast<const bf16*>(run) + begin;
      for (std::int64_t i = 0; i < elements; ++i) out[i] = to_float(values[i]);
      return;
    }
    case DType::f8_e4m3: {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(run) + begin;
      for (std::int64_t i = 0; i < elements; ++i) out[i] = e4m3_to_float(codes[i]) * scale;
      return;
    }
    default: fail_internal("pages of {}", dtype_name(part.dtype));
  }
}

void write_cache_row(const PagePart& part, std::int32_t page, std::int64_t head, std::int64_t slot, float scale,
                     const float* row) {
  std::byte* run = page_run(part, page, head);
  const std::int64_t begin = slot * head_dim;
  switch (part.dtype) {
    case DType::f32: std::memcpy(run + begin * 4, row, head_dim * 4); return;
    case DType::bf16: {
      auto* values = reinterpret_cast<bf16*>(run) + begin;
      for (int i = 0; i < head_dim; ++i) values[i] = to_bf16(row[i]);
      return;
    }
    case DType::f8_e4m3: {
      auto* codes = reinterpret_cast<std::uint8_t*>(run) + begin;
      for (int i = 0; i < head_dim; ++i) codes[i] = float_to_e4m3(row[i] / scale);
      return;
    }
    default: fail_internal("pages of {}", dtype_name(part.dtype));
  }
}

}  // namespace m3::ops
