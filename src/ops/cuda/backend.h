// The CUDA backend: operations queue kernels on one stream. The kernels are in the .cu files, one an operation under the
// name it has in scalar/; their launchers are declared in kernels.h and matmul.h.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

#include "src/ops/backends.h"
#include "src/ops/cuda/device_calls.h"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/marks.h"
#include "src/ops/cuda/matmul.h"
#include "src/ops/cuda/matmul_sm90.h"
#include "src/ops/host/arena.h"

namespace m3::ops::cuda {

// Experts of one layer whose matrices have the same formats, as the kernels take them.
struct ExpertClass {
  MlpWeights shape;  // of one of them: rows, columns, formats
  int groups = 0;
  const WeightPart* gate_up = nullptr;  // [groups, 2]; null where gate and up differ in format
  const WeightPart* gate = nullptr;     // [groups, 1]
  const WeightPart* up = nullptr;
  const WeightPart* down = nullptr;
  const WeightMaps* gate_up_maps = nullptr;  // for the kernels of many rows; null where they do not take them
  const WeightMaps* down_maps = nullptr;
  const WeightMaps* gate_up_tall_maps = nullptr;  // likewise, of matmul_narrow_sm90.h
  const WeightMaps* down_tall_maps = nullptr;
  const std::int32_t* group_of_expert = nullptr;  // [experts], -1: another class
};

// What `experts` keeps on the device for one span of experts.
struct ExpertTable {
  std::vector<MlpWeights> experts;  // as they were when it was made
  DeviceBuffer memory;
  std::vector<ExpertClass> classes;
};

class CudaBackend final : public Backend {
 public:
  // Errors: the device cannot be used.
  CudaBackend(const BackendOptions& options, ThreadPool& pool);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string_view name() const override { return "cuda"; }
  std::string description() const override;
  DType activation_dtype() const override { return DType::bf16; }
  std::string refusal(const Limits& limits) const override;
  std::int64_t workspace_bytes(const Limits& limits) const override;
  void bind_workspace(std::span<std::byte> workspace, const Limits& limits) override;

  bool has_host_memory() const override { return false; }
  Memory allocate(std::int64_t bytes) override;
  MemoryState memory_state() const override;
  void upload(std::byte* to, std::span<const std::byte> from) override;
  void upload(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress) override;
  void download(std::span<std::byte> to, const std::byte* from) override;
  void synchronize() override;
  bool idle() const override;
  void fill_random(std::span<std::byte> to, const RandomFill& fill) override;
  bool begin_pass(std::uint64_t key) override;
  void end_pass() override;
  void drop_pass() override;
  bool begin_marks() override {
    marks_.begin(stream_);
    return true;
  }
  void mark() override { marks_.add(stream_); }
  std::vector<double> take_marks() override { return marks_.take(); }

  void embed(const Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
             const Tensor& residual) override;
  void rotary_table(const Batch& batch, std::span<const float> inv_freq, float attention_factor,
                    const Tensor& table) override;
  void add_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm, const Tensor& normed,
                Communicator* communicator) override;
  void linear(const Tensor& x, std::span<const WeightMatrix> weights, const Tensor& out) override;
  void qkv_finish(const Batch& batch, const QkvFinish& args, const Tensor& packed, const Tensor& table,
                  const LayerPages& pages, const Tensor& q, const Tensor& index_q) override;
  void select_blocks(const Batch& batch, const SelectBlocks& args, const Tensor& index_q, const LayerPages& pages,
                     std::int32_t* block_ids) override;
  void attend_dense(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                    const Tensor& out) override;
  void attend_sparse(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                     const std::int32_t* block_ids, const Tensor& out) override;
  void route(const Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
             const Routing& routing) override;
  void experts(const Tensor& hidden, const Routing& routing, int first, std::span<const MlpWeights> experts,
               const MlpWeights* shared, float routed_scaling_factor, const Activation& activation,
               const Tensor& out) override;
  void mlp(const Tensor& hidden, const MlpWeights& weights, const Activation& activation, const Tensor& out) override;
  void logits(const Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
              const Tensor& logits) override;
  void begin_sample(const Tensor& logits, std::span<const SamplingRow> rows) override;
  void end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) override;
  std::span<const float> raw_logits(std::int64_t row) const override;
  const std::int32_t* sampled_ids() const override { return sampled_; }
  void copy_pages(const PagePart& part, std::span<const std::int32_t> from, std::span<const std::int32_t> to) override;

  void patch_embed(const Tensor& pixels, const WeightMatrix& weight, const Tensor& out) override;
  void vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                           const Tensor& table) override;
  void layer_norm(const Tensor& residual, const Tensor& delta, const LayerNormWeight& norm,
                  const Tensor& normed) override;
  void linear_bias(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                   const Tensor& out) override;
  void vision_qkv_finish(const VisionHeads& args, const Tensor& packed, const Tensor& table) override;
  void attend_segments(const VisionHeads& args, const Tensor& packed, std::span<const std::int32_t> segment_begin,
                       std::int64_t first_row, const Tensor& out) override;
  void gelu_mlp(const Tensor& hidden, const GeluMlpWeights& weights, const Tensor& out) override;

 private:
  struct Recording {
    cudaGraphExec_t graph = nullptr;
    int passes = 0;
    std::uint64_t played = 0;  // when last: a count of plays
  };
  // Rows of x as a product takes them: as they are, or as e4m3 values with a scale each.
  struct Activations {
    const std::uint16_t* data;
    std::int64_t stride;
    const float* scales;
  };

  Arena scratch() const { return Arena(scratch_); }
  void drop_recordings();
  void drop_oldest();  // that has a graph; there is one
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);
  Activations activations_for(bool quantised, const std::uint16_t* x, std::int64_t stride, std::int64_t rows,
                              std::int64_t columns, Arena& arena);
  enum class Then : std::uint8_t { nothing, gelu };
  // False: the results still want what comes `then`.
  bool multiply(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias, Store store,
                const Tensor& out, std::span<const std::int32_t> row_ids, const char* what, Then then = Then::nothing);
  const std::int32_t* place_segments(std::span<const std::int32_t> segment_begin);
  const ExpertTable& table_of(std::span<const MlpWeights> experts);
  void run_experts(const Tensor& hidden, const Routing& routing, int first, const ExpertTable* table,
                   const MlpWeights* shared, float scaling, const Activation& activation, const Tensor& out);
  template <typename T>
  const T* stage(std::span<const T> values, DeviceBuffer& to);

  std::int64_t matmul_scratch_bytes(const Limits& limits) const;
  std::int64_t experts_scratch_bytes(const Limits& limits) const;
  std::int64_t vision_scratch_bytes(const Limits& limits) const;
  std::int64_t persistent_bytes(const Limits& limits) const;

  ThreadPool& pool_;
  cudaStream_t stream_ = nullptr;
  std::string device_name_;
  std::int64_t shared_bytes_ = 0;  // that a block of threads may have
  bool deterministic_ = false;
  // The one backend of a process whose kernels may wait for their own blocks on the grid (experts_sm90.cuh).
  bool meets_ = false;
  Limits limits_;
  std::span<std::byte> scratch_;
  std::int32_t* sampled_ = nullptr;  // [logits_rows]
  std::uint8_t* finite_ = nullptr;   // [logits_rows], right behind
  unsigned* counters_ = nullptr;     // [counters_size_] of blocks that have ended; zero between kernels
  std::int64_t counters_size_ = 0;
  float* partials_ = nullptr;              // [narrow_partial_floats] of products' sums
  std::uint32_t* token_counts_ = nullptr;  // [logits_rows, vocab], zero between draws
  std::int64_t sampling_ = 0;              // rows of the draw under way
  cudaEvent_t sampled_event_ = nullptr;    // behind the copies of its results
  std::byte* results_ = nullptr;           // pinned: ids, then finite
  std::size_t results_size_ = 0;
  void keep_raw(const Tensor& logits, std::span<const SamplingRow> rows);
  HostBuffer raw_;                     // rows that are kept, one behind the other
  std::vector<const float*> raw_row_;  // where each lies there; null: not kept
  std::size_t raw_columns_ = 0;
  Staging staging_;
  Staging landing_;  // the other way
  Marks marks_;
  DeviceBuffer sample_lists_, page_lists_[2], segment_list_, dropped_list_;
  std::vector<std::int32_t> segments_;  // what segment_list_ holds, there
  const std::byte* segments_at_ = nullptr;
  std::map<const MlpWeights*, std::unique_ptr<ExpertTable>> tables_;
  std::map<std::uint64_t, Recording> recordings_;
  std::uint64_t recording_ = 0;  // key of the pass being recorded
  std::uint64_t plays_ = 0;
};

}  // namespace m3::ops::cuda
