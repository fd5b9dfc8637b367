// The judge behind a wall: a backend whose memory is its own, as a device's is. Outside of its operations the memory may
// not be touched, so that a host that follows a device's pointer dies at once; inside them every operand must lie in it,
// so that a host's pointer handed to a device is found too. Passes with a key are recorded and played again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "src/ops/ops.h"

namespace m3::test {

class DeviceJudge final : public ops::Backend {
 public:
  // What happened, for tests.
  struct Counts {
    int passes = 0;
    int recorded = 0, played = 0;  // of them
    int of_drawn = 0;              // of them, with tokens from where a draw left them
    int synchronized = 0;
    std::int64_t downloaded_bytes = 0;
    int pictures = 0;               // patches embedded: calls
    bool marks = false;             // to be set: the device tells the times of operations
    int slow = 0;                   // to be set: so many times after an operation of the tower, idle() says no
    std::int64_t most_hidden = 0;   // to be set: larger hidden sizes are refused, the tower's too
    std::int64_t most_context = 0;  // to be set: longer contexts are refused
  };

  // `counts` may be null; else it must outlive the judge.
  DeviceJudge(std::unique_ptr<ops::Backend> inner, std::int64_t memory_bytes, Counts* counts = nullptr);

  std::string_view name() const override { return inner_->name(); }
  std::string description() const override { return "the judge behind a wall"; }
  DType activation_dtype() const override { return inner_->activation_dtype(); }

  bool has_host_memory() const override { return false; }
  ops::Memory allocate(std::int64_t bytes) override;
  ops::MemoryState memory_state() const override { return {total_bytes_ - used_bytes_, total_bytes_}; }
  void upload(std::byte* to, std::span<const std::byte> from) override;
  void upload(std::span<const ops::Transfer> transfers, const std::function<void(std::int64_t)>& progress) override;
  void download(std::span<std::byte> to, const std::byte* from) override;
  void synchronize() override {
    ++counts_->synchronized;
    busy_ = 0;
  }
  bool idle() const override { return busy_ == 0 || busy_-- == 0; }
  void fill_random(std::span<std::byte> to, const RandomFill& fill) override;
  bool begin_pass(std::uint64_t key) override;
  void end_pass() override;
  void drop_pass() override;
  bool begin_marks() override;
  void mark() override { ++marks_; }
  std::vector<double> take_marks() override;
  std::string refusal(const ops::Limits& limits) const override;
  std::int64_t workspace_bytes(const ops::Limits& limits) const override;
  void bind_workspace(std::span<std::byte> workspace, const ops::Limits& limits) override;

  void embed(const ops::Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
             const ops::Tensor& residual) override;
  void rotary_table(const ops::Batch& batch, std::span<const float> inv_freq, float attention_factor,
                    const ops::Tensor& table) override;
  void add_norm(const ops::Tensor& residual, const ops::Tensor& delta, const ops::NormWeight& norm,
                const ops::Tensor& normed, ops::Communicator* communicator) override;
  void linear(const ops::Tensor& x, std::span<const WeightMatrix> weights, const ops::Tensor& out) override;
  void qkv_finish(const ops::Batch& batch, const ops::QkvFinish& args, const ops::Tensor& packed,
                  const ops::Tensor& table, const ops::LayerPages& pages, const ops::Tensor& q,
                  const ops::Tensor& index_q) override;
  void select_blocks(const ops::Batch& batch, const ops::SelectBlocks& args, const ops::Tensor& index_q,
                     const ops::LayerPages& pages, std::int32_t* block_ids) override;
  void attend_dense(const ops::Batch& batch, const ops::Attention& args, const ops::Tensor& q,
                    const ops::LayerPages& pages, const ops::Tensor& out) override;
  void attend_sparse(const ops::Batch& batch, const ops::Attention& args, const ops::Tensor& q,
                     const ops::LayerPages& pages, const std::int32_t* block_ids, const ops::Tensor& out) override;
  void route(const ops::Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
             const ops::Routing& routing) override;
  void experts(const ops::Tensor& hidden, const ops::Routing& routing, int first,
               std::span<const ops::MlpWeights> experts, const ops::MlpWeights* shared, float routed_scaling_factor,
               const ops::Activation& activation, const ops::Tensor& out) override;
  void mlp(const ops::Tensor& hidden, const ops::MlpWeights& weights, const ops::Activation& activation,
           const ops::Tensor& out) override;
  void logits(const ops::Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
              const ops::Tensor& logits) override;
  void begin_sample(const ops::Tensor& logits, std::span<const ops::SamplingRow> rows) override;
  void end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) override;
  std::span<const float> raw_logits(std::int64_t row) const override { return inner_->raw_logits(row); }
  const std::int32_t* sampled_ids() const override { return reinterpret_cast<const std::int32_t*>(sampled_.data()); }
  void copy_pages(const ops::PagePart& part, std::span<const std::int32_t> from,
                  std::span<const std::int32_t> to) override;

  void patch_embed(const ops::Tensor& pixels, const WeightMatrix& weight, const ops::Tensor& out) override;
  void vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                           const ops::Tensor& table) override;
  void layer_norm(const ops::Tensor& residual, const ops::Tensor& delta, const ops::LayerNormWeight& norm,
                  const ops::Tensor& normed) override;
  void linear_bias(const ops::Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                   const ops::Tensor& out) override;
  void vision_qkv_finish(const ops::VisionHeads& args, const ops::Tensor& packed, const ops::Tensor& table) override;
  void attend_segments(const ops::VisionHeads& args, const ops::Tensor& packed,
                       std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                       const ops::Tensor& out) override;
  void gelu_mlp(const ops::Tensor& hidden, const ops::GeluMlpWeights& weights, const ops::Tensor& out) override;

 private:
  using Operation = std::function<void()>;

  void protect(bool open);
  // Runs with the memory open; recorded where a pass is.
  void operate(Operation operation);
  void operate_slowly(Operation operation);  // of the tower
  void check(const void* data, std::int64_t bytes, const char* what) const;
  void check(const ops::Tensor& tensor, const char* what) const;
  void check(const WeightMatrix& weight, const char* what) const;
  void check(const ops::MlpWeights& weights, const char* what) const;
  void check(std::span<const float> values, const char* what) const;
  void check(const ops::LayerPages& pages) const;
  void check(const ops::Batch& batch) const;

  std::unique_ptr<ops::Backend> inner_;
  std::int64_t total_bytes_, used_bytes_ = 0;
  Counts own_counts_;
  Counts* counts_;
  std::map<std::byte*, std::size_t> blocks_;
  ops::Memory sampled_;
  std::map<std::uint64_t, std::vector<Operation>> passes_;
  std::vector<Operation>* recording_ = nullptr;
  int marks_ = 0;
  mutable int busy_ = 0;
};

// LoadedModelOptions::wrap for a walled device of so much memory.
std::function<std::unique_ptr<ops::Backend>(std::unique_ptr<ops::Backend>)> wall(
    DeviceJudge::Counts* counts = nullptr, std::int64_t memory_bytes = std::int64_t{1} << 30);

}  // namespace m3::test
