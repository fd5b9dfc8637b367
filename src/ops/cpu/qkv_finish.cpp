#include <cstring>

#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/host/pages.h"
#include "src/ops/host/rows.h"

namespace m3::ops::cpu {

void CpuBackend::qkv_finish(const Batch& batch, const QkvFinish& args, const Tensor& packed, const Tensor& table,
                            const LayerPages& pages, const Tensor& q, const Tensor& index_q) {
  const std::int64_t heads = args.query_heads + 2 * args.kv_heads + args.index_heads + (args.index_heads > 0 ? 1 : 0);
  check_tensor(packed, DType::bf16, batch.tokens, heads * head_dim, "qkv_finish: packed");
  check_tensor(table, DType::f32, batch.tokens, args.rotary_dim, "qkv_finish: table");
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "qkv_finish: q");
  if (args.index_heads > 0) {
    check_tensor(index_q, DType::bf16, batch.tokens, args.index_heads * head_dim, "qkv_finish: index_q");
  }
  pool_.split(batch.tokens, 4, [&](std::int64_t begin, std::int64_t end, int) {
    alignas(64) float row[head_dim];
    std::uint16_t rounded[head_dim];
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int32_t sequence = live_sequence(batch, token);
      if (sequence < 0) continue;
      const std::int64_t block = batch.positions[token] / page_tokens;
      const std::int64_t slot = batch.positions[token] % page_tokens;
      const std::int32_t page = kv_page(batch, sequence, block);
      if (page < 0) continue;
      const auto* x = reinterpret_cast<const std::uint16_t*>(packed.row(token));
      const auto* angles = reinterpret_cast<const float*>(table.row(token));
      const auto finish = [&](std::span<const float> weight, int rotary_dim) {
        kernels_.norm_rotate(x, weight.empty() ? nullptr : weight.data(), args.gemma, args.eps, angles, rotary_dim,
                             row);
        x += head_dim;
      };
      const auto store = [&](const PagePart& part, std::int32_t to, std::int64_t head, float scale) {
        if (part.dtype == DType::f8_e4m3) return write_cache_row(part, to, head, slot, scale, row);
        kernels_.round_bf16(row, head_dim, rounded);
        if (part.dtype == DType::bf16) {
          std::memcpy(page_run(part, to, head) + slot * sizeof(rounded), rounded, sizeof(rounded));
          return;
        }
        kernels_.widen_bf16(rounded, head_dim, head_dim, row);
        write_cache_row(part, to, head, slot, scale, row);
      };

      auto* q_row = reinterpret_cast<std::uint16_t*>(q.row(token));
      for (int head = 0; head < args.query_heads; ++head, q_row += head_dim) {
        finish(args.q_norm, args.rotary_dim);
        kernels_.round_bf16(row, head_dim, q_row);
      }
      for (int head = 0; head < args.kv_heads; ++head) {
        finish(args.k_norm, args.rotary_dim);
        store(pages.k, page, head, pages.k_scale);
      }
      for (int head = 0; head < args.kv_heads; ++head) {
        finish({}, 0);
        store(pages.v, page, head, pages.v_scale);
      }
      if (args.index_heads == 0) continue;
      auto* index_row = reinterpret_cast<std::uint16_t*>(index_q.row(token));
      for (int head = 0; head < args.index_heads; ++head, index_row += head_dim) {
        finish(args.index_q_norm, args.rotary_dim);
        kernels_.round_bf16(row, head_dim, index_row);
      }
      const std::int32_t key_page = index_page(batch, sequence, block);
      if (key_page < 0) continue;
      finish(args.index_k_norm, args.rotary_dim);
      store(pages.index_k, key_page, 0, 1.0f);
    }
  });
}

}  // namespace m3::ops::cpu
