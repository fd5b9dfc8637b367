// What the backends on the host share: the workspace, and the operations that need no arithmetic of their
// own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/ops/host/arena.h"
#include "src/ops/ops.h"

namespace m3::ops {

class HostBackend : public Backend {
 public:
  explicit HostBackend(ThreadPool& pool) : pool_(pool) {}

  bool has_host_memory() const final { return true; }
  Memory allocate(std::int64_t bytes) final;
  MemoryState memory_state() const final;
  void upload(std::byte* to, std::span<const std::byte> from) final;
  void upload(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress) final;
  void download(std::span<std::byte> to, const std::byte* from) final;
  void synchronize() final {}
  void fill_random(std::span<std::byte> to, const RandomFill& fill) final;
  bool begin_pass(std::uint64_t) final { return false; }
  void end_pass() final {}
  void drop_pass() final {}

  void bind_workspace(std::span<std::byte> workspace, const Limits& limits) final;
  void rotary_table(const Batch& batch, std::span<const float> inv_freq, float attention_factor,
                    const Tensor& table) final;
  void vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                           const Tensor& table) final;
  void begin_sample(const Tensor& logits, std::span<const SamplingRow> rows) final;
  void end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) final;
  std::span<const float> raw_logits(std::int64_t row) const final { return raw_[static_cast<std::size_t>(row)]; }
  const std::int32_t* sampled_ids() const final { return sampled_.data(); }
  void copy_pages(const PagePart& part, std::span<const std::int32_t> from, std::span<const std::int32_t> to) final;

 protected:
  Arena scratch() const { return Arena(workspace_); }
  std::int64_t sample_scratch_bytes(const Limits& limits) const;
  // The whole workspace is one operation's at a time; `limits` are those it was planned for.
  const Limits& limits() const { return limits_; }
  ThreadPool& pool_;

 private:
  std::span<std::byte> workspace_;
  Limits limits_;
  std::vector<std::int32_t> sampled_;    // of the draw begun last
  std::vector<std::uint8_t> finite_;     // likewise
  std::vector<std::vector<float>> raw_;  // of its rows that are kept
};

// A rank of a group would sum its part with the others' here; these backends run alone.
void refuse_communicator(const Communicator* communicator);

// Errors (internal): the tensor is of another type, or smaller than [rows, columns].
void check_tensor(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t columns, const char* what);

}  // namespace m3::ops
