#include "src/kv/page_layout.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace m3::kv {

namespace {

constexpr std::int64_t tokens = 128;
constexpr std::int64_t dim = 128;

void check_dtype(DType dtype, const char* what) {
  if (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f8_e4m3) return;
  fail_usage("{} cache of {}: the cache holds f32, bf16 or f8_e4m3", what, dtype_name(dtype));
}

}  // namespace

PageLayout make_page_layout(const std::vector<LayerCache>& layers, DType kv_dtype, DType index_dtype,
                            const std::string& model_fingerprint) {
  check_dtype(kv_dtype, "K/V");
  check_dtype(index_dtype, "index-K");
  PageLayout layout;
  const auto add = [&](PartKind kind, int layer, DType dtype, std::int64_t heads, int shard_axis) {
    Part part{.kind = kind, .layer = layer, .dtype = dtype, .shape = {heads, tokens, dim}, .shard_axis = shard_axis};
    part.bytes = heads * tokens * dim * static_cast<std::int64_t>(dtype_size(dtype));
    part.offset = layout.page_bytes;
    layout.page_bytes += part.bytes;
    layout.parts.push_back(part);
  };
  for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
    const LayerCache& cache = layers[static_cast<std::size_t>(layer)];
    add(PartKind::k, layer, kv_dtype, cache.kv_heads, 0);
    add(PartKind::v, layer, kv_dtype, cache.kv_heads, 0);
    if (cache.index_k) add(PartKind::index_k, layer, index_dtype, 1, -1);
  }
  layout.fingerprint = fmt::format("{};kv={};index={};bytes={}", model_fingerprint, dtype_name(kv_dtype),
                                   dtype_name(index_dtype), layout.page_bytes);
  return layout;
}

const Part* PageLayout::find(int layer, PartKind kind) const {
  for (const Part& part : parts) {
    if (part.layer == layer && part.kind == kind) return &part;
  }
  return nullptr;
}

}  // namespace m3::kv
