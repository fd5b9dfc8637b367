// The backend that people run on a CPU: bf16 activations, vectorised kernels chosen by machine, rows owned by threads.
#pragma once

#include "src/ops/cpu/kernels.h"
#include "src/ops/cpu/matmul.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops::cpu {

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const Kernels& kernels, ThreadPool& pool) : HostBackend(pool), kernels_(kernels) {}

  std::string_view name() const override { return "cpu"; }
  std::string description() const override;
  DType activation_dtype() const override { return DType::bf16; }
  std::int64_t workspace_bytes(const Limits& limits) const override;

  void embed(const Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
             const Tensor& residual) override;
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
  void patch_embed(const Tensor& pixels, const WeightMatrix& weight, const Tensor& out) override;
  void layer_norm(const Tensor& residual, const Tensor& delta, const LayerNormWeight& norm,
                  const Tensor& normed) override;
  void linear_bias(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                   const Tensor& out) override;
  void vision_qkv_finish(const VisionHeads& args, const Tensor& packed, const Tensor& table) override;
  void attend_segments(const VisionHeads& args, const Tensor& packed, std::span<const std::int32_t> segment_begin,
                       std::int64_t first_row, const Tensor& out) override;
  void gelu_mlp(const Tensor& hidden, const GeluMlpWeights& weights, const Tensor& out) override;

 private:
  template <typename X, typename Store>
  void multiply(std::int64_t tokens, std::span<const WeightMatrix> weights, Arena arena, const X& x,
                const Store& store);

  // What each operation needs, by its file.
  std::int64_t embed_scratch_bytes(const Limits& limits) const;
  std::int64_t linear_scratch_bytes(const Limits& limits) const;  // logits, route
  std::int64_t select_blocks_scratch_bytes(const Limits& limits) const;
  std::int64_t attend_scratch_bytes(const Limits& limits) const;
  std::int64_t experts_scratch_bytes(const Limits& limits) const;        // mlp
  std::int64_t vision_linear_scratch_bytes(const Limits& limits) const;  // patch_embed, linear_bias, gelu_mlp
  std::int64_t attend_segments_scratch_bytes(const Limits& limits) const;

  const Kernels& kernels_;
};

}  // namespace m3::ops::cpu
