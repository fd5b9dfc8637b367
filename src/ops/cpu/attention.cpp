#include "src/ops/cpu/attention.h"

namespace m3::ops::cpu {

void AttentionTasks::load_query(std::int64_t task, const AttentionPart& part) const {
  const auto* from = reinterpret_cast<const std::uint16_t*>(q_.row(token(task))) + first_head(task) * head_dim;
  std::fill(part.q, part.q + head_dim * split_.padded, 0.0f);
  for (int head = 0; head < heads(task); ++head) {
    kernels_.widen_bf16(from + head * head_dim, head_dim, head_dim, part.row);
    for (int d = 0; d < head_dim; ++d) part.q[d * split_.padded + head] = part.row[d];
  }
}

const std::byte* AttentionTasks::row(const PagePart& pages, std::int64_t task, const KeyRun& run) const {
  return page_run(pages, run.page, kv_head(task)) +
         run.first * head_dim * static_cast<std::int64_t>(dtype_size(pages.dtype));
}

void AttentionTasks::widen(std::int64_t task, const KeyRun& run, float* k, float* v) const {
  const std::int64_t count = run.last - run.first;
  kernels_.widen_rows(pages_.k.dtype, row(pages_.k, task, run), 0, count, pages_.k_scale, k);
  kernels_.widen_rows(pages_.v.dtype, row(pages_.v, task, run), 0, count, pages_.v_scale, v);
}

void AttentionTasks::attend_run(std::int64_t task, const KeyRun& run, const WideRows& wide, const AttentionPart& part,
                                const AttentionState& state) const {
  AttentionCall call;
  call.q = part.q;
  call.heads = split_.padded;
  call.scale = args_.scale;
  call.k_type = pages_.k.dtype;
  call.v_type = pages_.v.dtype;
  call.k = row(pages_.k, task, run);
  call.v = row(pages_.v, task, run);
  call.wide_k = wide.k;
  call.wide_v = wide.v;
  call.count = run.last - run.first;
  call.k_scale = pages_.k_scale;
  call.v_scale = pages_.v_scale;
  call.rows = part.rows;
  call.scores = part.scores;
  kernels_.attend_page(call, state);
}

void AttentionTasks::store(std::int64_t task, const AttentionPart& part, const AttentionState& state) const {
  kernels_.attention_finish(split_.padded, state);
  auto* to = reinterpret_cast<std::uint16_t*>(out_.row(token(task))) + first_head(task) * head_dim;
  for (int head = 0; head < heads(task); ++head) {
    for (int d = 0; d < head_dim; ++d) part.row[d] = state.sums[d * split_.padded + head];
    kernels_.round_bf16(part.row, head_dim, to + head * head_dim);
  }
}

}  // namespace m3::ops::cpu
