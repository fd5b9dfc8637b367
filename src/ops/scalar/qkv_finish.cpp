#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/ops/host/pages.h"
#include "src/ops/host/rows.h"
#include "src/ops/scalar/scalar_backend.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

namespace {

// One head in fp32: norm over its 128 elements, then rotation of the first `rotary_dim` in pairs (i, i +
// half). `table`: cos and sin, half wide each.
void norm_and_rotate(const QkvFinish& args, std::span<const float> weight, const float* table, const float* x,
                     float* y) {
  std::copy(x, x + head_dim, y);
  if (!weight.empty()) {
    const float r = inverse_root(dot(x, x, head_dim) / head_dim + args.eps);
    for (int i = 0; i < head_dim; ++i) {
      const float w = weight[static_cast<std::size_t>(i)];
      y[i] = (x[i] * r) * (args.gemma ? 1.0f + w : w);
    }
  }
  const int half = args.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = y[i];
    const float b = y[i + half];
    y[i] = a * table[i] - b * table[half + i];
    y[i + half] = b * table[i] + a * table[half + i];
  }
}

}  // namespace

// spec §3.4-3.6.
void ScalarBackend::qkv_finish(const Batch& batch, const QkvFinish& args, const Tensor& packed, const Tensor& table,
                               const LayerPages& pages, const Tensor& q, const Tensor& index_q) {
  const std::int64_t heads = args.query_heads + 2 * args.kv_heads + args.index_heads + (args.index_heads > 0 ? 1 : 0);
  check_tensor(packed, DType::f32, batch.tokens, heads * head_dim, "qkv_finish: packed");
  check_tensor(table, DType::f32, batch.tokens, args.rotary_dim, "qkv_finish: table");
  check_tensor(q, DType::f32, batch.tokens, args.query_heads * head_dim, "qkv_finish: q");
  if (args.index_heads > 0) {
    check_tensor(index_q, DType::f32, batch.tokens, args.index_heads * head_dim, "qkv_finish: index_q");
  }
  pool_.split(batch.tokens, 4, [&](std::int64_t begin, std::int64_t end, int) {
    float row[head_dim];
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int32_t sequence = live_sequence(batch, token);
      if (sequence < 0) continue;
      const std::int64_t block = batch.positions[token] / page_tokens;
      const std::int64_t slot = batch.positions[token] % page_tokens;
      const std::int32_t page = kv_page(batch, sequence, block);
      if (page < 0) continue;
      const auto* x = reinterpret_cast<const float*>(packed.row(token));
      const auto* angles = reinterpret_cast<const float*>(table.row(token));
      const auto store = [&](const PagePart& part, std::int32_t to, std::int64_t head, float scale) {
        // fp8 is cast from the fp32 row at once; the other types hold activations.
        if (part.dtype != DType::f8_e4m3) {
          for (float& value : row) value = rounded(value);
        }
        write_cache_row(part, to, head, slot, scale, row);
      };

      auto* q_row = reinterpret_cast<float*>(q.row(token));
      for (int head = 0; head < args.query_heads; ++head, x += head_dim, q_row += head_dim) {
        norm_and_rotate(args, args.q_norm, angles, x, row);
        for (int i = 0; i < head_dim; ++i) q_row[i] = rounded(row[i]);
      }
      for (int head = 0; head < args.kv_heads; ++head, x += head_dim) {
        norm_and_rotate(args, args.k_norm, angles, x, row);
        store(pages.k, page, head, pages.k_scale);
      }
      for (int head = 0; head < args.kv_heads; ++head, x += head_dim) {
        std::copy(x, x + head_dim, row);
        store(pages.v, page, head, pages.v_scale);
      }
      if (args.index_heads == 0) continue;
      auto* index_row = reinterpret_cast<float*>(index_q.row(token));
      for (int head = 0; head < args.index_heads; ++head, x += head_dim, index_row += head_dim) {
        norm_and_rotate(args, args.index_q_norm, angles, x, row);
        for (int i = 0; i < head_dim; ++i) index_row[i] = rounded(row[i]);
      }
      const std::int32_t key_page = index_page(batch, sequence, block);
      if (key_page < 0) continue;
      norm_and_rotate(args, args.index_k_norm, angles, x, row);
      store(pages.index_k, key_page, 0, 1.0f);
    }
  });
}

}  // namespace m3::ops::scalar
