#include <algorithm>

#include "src/base/error.h"
#include "src/ops/host/host_backend.h"
#include "src/ops/host/sampler.h"

namespace m3::ops {

namespace {

// Rows sampled at the same time: each takes 12 bytes of workspace for every id.
constexpr int sampler_lanes = 8;

int lanes_of(const ThreadPool& pool) { return std::min(pool.size(), sampler_lanes); }

}  // namespace

std::int64_t HostBackend::sample_scratch_bytes(const Limits& limits) const {
  return lanes_of(pool_) * bytes_of<SamplerScratch>(limits.vocab);
}

void HostBackend::sample(const Tensor& logits, std::span<const SamplingRow> rows, std::span<std::int32_t> ids) {
  const auto count = static_cast<std::int64_t>(rows.size());
  check_tensor(logits, DType::f32, count, 1, "sample");
  if (ids.size() < rows.size()) fail_internal("sample: {} rows, {} ids", rows.size(), ids.size());
  const std::int64_t vocab = logits.columns;
  const int lanes = lanes_of(pool_);
  const bool counting = std::any_of(rows.begin(), rows.end(), [](const SamplingRow& row) {
    return row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0;
  });
  Arena arena = scratch();
  const ThreadArenas memory(arena, lanes, bytes_of<SamplerScratch>(vocab));
  const auto run_lane = [&](int lane, int stride) {
    if (lane >= stride || lane >= count) return;
    Arena own = memory[lane];
    const SamplerScratch sampler(own, vocab);
    if (counting) std::fill(sampler.counts, sampler.counts + vocab, 0u);
    for (std::int64_t row = lane; row < count; row += stride) {
      const auto index = static_cast<std::size_t>(row);
      const std::span<float> values(reinterpret_cast<float*>(logits.row(row)), static_cast<std::size_t>(vocab));
      ids[index] = sample_row(values, rows[index], sampler);
    }
  };
  if (count == 1) return run_lane(0, 1);
  pool_.run([&](int thread) { run_lane(thread, lanes); });
}

}  // namespace m3::ops
