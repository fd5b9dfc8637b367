#include <algorithm>
#include <bit>

#include "src/base/error.h"
#include "src/ops/host/host_backend.h"
#include "src/ops/host/sampler.h"

namespace m3::ops {

namespace {

// Rows sampled at the same time: each takes 12 bytes of workspace for every id.
constexpr int sampler_lanes = 8;

// By exponent bits, without an early exit, so that the compiler vectorises.
bool all_finite(std::span<const float> values) {
  std::uint32_t broken = 0;
  for (const float value : values) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(value) & 0x7f800000u;
    broken |= exponent == 0x7f800000u ? 1u : 0u;
  }
  return broken == 0;
}

int lanes_of(const ThreadPool& pool) { return std::min(pool.size(), sampler_lanes); }

}  // namespace

std::int64_t HostBackend::sample_scratch_bytes(const Limits& limits) const {
  return lanes_of(pool_) * bytes_of<SamplerScratch>(limits.vocab);
}

void HostBackend::begin_sample(const Tensor& logits, std::span<const SamplingRow> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  check_tensor(logits, DType::f32, count, 1, "sample");
  if (sampled_.size() < rows.size()) sampled_.resize(rows.size());
  finite_.resize(rows.size());
  if (raw_.size() < rows.size()) raw_.resize(rows.size());
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
      finite_[index] = all_finite(values) ? 1 : 0;
      if (rows[index].keep_raw) raw_[index].assign(values.begin(), values.end());
      sampled_[index] = sample_row(values, rows[index], sampler);
    }
  };
  if (count == 1) return run_lane(0, 1);
  pool_.run([&](int thread) { run_lane(thread, lanes); });
}

void HostBackend::end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) {
  if (ids.size() < finite_.size()) fail_internal("sample: {} rows, {} ids", finite_.size(), ids.size());
  std::copy_n(sampled_.begin(), finite_.size(), ids.begin());
  if (!finite.empty()) std::copy(finite_.begin(), finite_.end(), finite.begin());
}

}  // namespace m3::ops
