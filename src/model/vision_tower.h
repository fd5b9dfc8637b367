// The vision tower and its projector, written once against ops.h (spec §4.4-4.7).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/checkpoint/config.h"
#include "src/checkpoint/vision_weights.h"
#include "src/ops/ops.h"

namespace m3::model {

// A picture or a clip in patches: t temporal groups of h rows and w columns; t is 1 for a picture.
struct PatchGrid {
  std::int64_t t = 0, h = 0, w = 0;
  std::int64_t patches() const { return t * h * w; }
};

class VisionTower {
 public:
  // Config and weights are borrowed and must outlive the tower, as must the backend, whose workspace is the tower's
  // alone. Errors: no vision_config, a head_dim other than 80.
  VisionTower(const ModelConfig& config, const VisionWeights& weights, ops::Backend& backend);

  // Errors (usage): a side of 0 or no multiple of spatial_merge_size, or more patches than can be counted.
  void check(const PatchGrid& grid) const;
  // Tokens of the prompt that the grid stands for.
  std::int64_t feature_rows(const PatchGrid& grid) const { return grid.patches() / merged_patches_; }
  // Patches that attend to each other: of a picture all, of a clip those of 4 temporal groups (spec §4.6).
  std::int64_t segment_patches(const PatchGrid& grid) const;
  std::int64_t feature_columns() const { return config_->hidden_size; }
  std::int64_t pixel_columns() const { return vision_->patch_elements(); }
  DType feature_dtype() const { return backend_->activation_dtype(); }

  // For segments of up to `patches` patches. What grows with them are the residual, q, k, v and the rotary table, about
  // 10.5 kB a patch at M3's width; everything else is done in blocks of rows.
  std::int64_t workspace_bytes(std::int64_t patches) const;
  // 64-byte aligned, at least workspace_bytes(patches) long; bound until the next call.
  void bind_workspace(std::span<std::byte> workspace, std::int64_t patches);

  // features [Σ feature_rows, text hidden] <- pixels [Σ patches, pixel_columns] f32 of several pictures and clips, one
  // after another. A row does not depend on the others' pictures, bit for bit. Errors (usage): those of check(), a
  // segment longer than planned; (internal): sizes that do not fit the grids.
  void forward(std::span<const PatchGrid> grids, std::span<const float> pixels, const ops::Tensor& features);

 private:
  struct Layer {
    const VisionLayerWeights* weights = nullptr;
    std::vector<WeightMatrix> qkv;
    std::vector<float> qkv_bias;
    ops::GeluMlpWeights mlp;
  };
  // Views into the workspace: of all patches of a pass, then of a block of rows.
  struct Activations {
    ops::Tensor residual, packed, rotary;
    ops::Tensor normed, attended, delta, projected;
  };

  ops::Limits limits(std::int64_t patches) const;
  std::int64_t carve(std::byte* memory, std::int64_t patches, Activations& at) const;
  void add_segment(const PatchGrid& segment);
  void run_pass(const float* pixels, const ops::Tensor& features);
  void attention_inputs(const Layer& layer, std::int64_t first, std::int64_t count);
  void attend_and_feed_forward(const Layer& layer, std::int64_t first, std::int64_t count);
  void project(std::int64_t first, std::int64_t count, const ops::Tensor& features);
  template <typename Work>
  void each_block(const Work& work) const;

  const ModelConfig* config_;
  const VisionConfig* vision_;
  const VisionWeights* weights_;
  ops::Backend* backend_;
  ops::VisionHeads heads_;
  std::int64_t merged_patches_ = 4;
  std::int64_t block_rows_ = 512;
  std::vector<float> inv_freq_;  // [13]
  std::vector<Layer> layers_;
  ops::GeluMlpWeights projector_, merge_;
  std::int64_t most_patches_ = 0;
  Activations at_;
  // Of the pass at hand.
  std::vector<std::int32_t> positions_;      // [patches, 3] t, h, w
  std::vector<std::int32_t> segment_begin_;  // [segments + 1]
};

}  // namespace m3::model
