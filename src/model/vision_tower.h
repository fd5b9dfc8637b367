// The vision tower and its projector, written once against ops.h (spec §4.4-4.7).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "src/checkpoint/config.h"
#include "src/checkpoint/vision_weights.h"
#include "src/model/weight_placement.h"
#include "src/ops/ops.h"

namespace m3::model {

// A picture or a clip in patches: t temporal groups of h rows and w columns; t is 1 for a picture.
struct PatchGrid {
  std::int64_t t = 0, h = 0, w = 0;
  std::int64_t patches() const { return t * h * w; }
};

// How the work is cut. A row of features does not depend on it, bit for bit, where a row of the operations does not.
struct VisionBlocks {
  std::int64_t rows = 512;        // of everything but the residual, q, k, v and the rotary table
  std::int64_t pixel_rows = 512;  // patches that are embedded at a time
  double operations = 8e9;        // of one call of attention, if a block is more: so many rows less, down to 128
  std::int64_t company = 64;      // patches of small pictures that are worth a pass together

  // What the backend's operations need to be fast, in pieces of some milliseconds on a device, some tens on the host.
  static VisionBlocks of(const ops::Backend& backend);
};

class VisionTower {
 public:
  // Config and weights are borrowed and must outlive the tower, as must the backend, whose workspace is the tower's
  // alone. Errors: no vision_config, a head_dim other than 80.
  VisionTower(const ModelConfig& config, const VisionWeights& weights, ops::Backend& backend)
      : VisionTower(config, weights, backend, VisionBlocks::of(backend)) {}
  VisionTower(const ModelConfig& config, const VisionWeights& weights, ops::Backend& backend,
              const VisionBlocks& blocks);
  VisionTower(const VisionTower&) = delete;  // the placement knows where its parts stand
  VisionTower& operator=(const VisionTower&) = delete;

  // Memory of the backend that the weights take: 0 where it uses them as they are mapped.
  std::int64_t placed_bytes() const { return placement_.bytes(); }
  // Brings the weights there; before the first picture, if placed_bytes() is not 0. See WeightPlacement::place.
  void place_weights(std::span<const RandomPiece> made, const std::function<void(std::int64_t)>& progress) {
    placement_.place(made, progress);
  }

  // Errors (usage): a side of 0 or no multiple of spatial_merge_size, or more patches than can be counted.
  void check(const PatchGrid& grid) const;
  // Tokens of the prompt that the grid stands for.
  std::int64_t feature_rows(const PatchGrid& grid) const { return grid.patches() / merged_patches_; }
  // Patches that attend to each other: of a picture all, of a clip those of 4 temporal groups (spec §4.6).
  std::int64_t segment_patches(const PatchGrid& grid) const;
  std::int64_t feature_columns() const { return config_->hidden_size; }
  std::int64_t pixel_columns() const { return vision_->patch_elements(); }
  DType feature_dtype() const { return backend_->activation_dtype(); }

  // Small pictures of so many patches in all are best seen in one pass, which reads the weights once: the first of them
  // waits little longer than for itself.
  std::int64_t company_patches() const { return std::min(blocks_.company, most_patches_); }

  // For segments of up to `patches` patches. What grows with them are the residual, q, k, v and the rotary table, about
  // 10.5 kB a patch at M3's width; everything else is done in blocks of rows.
  std::int64_t workspace_bytes(std::int64_t patches) const;
  // 64-byte aligned memory of the backend, at least workspace_bytes(patches) long; bound until the next call.
  void bind_workspace(std::span<std::byte> workspace, std::int64_t patches);

  // features [Σ feature_rows, text hidden] <- pixels [Σ patches, pixel_columns] f32 of several pictures and clips, one
  // after another; both in the host's memory. A row does not depend on the others' pictures, bit for bit. Errors
  // (usage): those of check(), a segment longer than planned; (internal): sizes that do not fit the grids.
  void forward(std::span<const PatchGrid> grids, std::span<const float> pixels, const ops::Tensor& features) {
    begin(grids, pixels, features);
    while (!advance(std::numeric_limits<double>::infinity())) {}
  }

  // The same in pieces: begin() forgets what was under way; pixels and features must live until advance() has returned
  // true, or the next begin(). The features are there when it has.
  void begin(std::span<const PatchGrid> grids, std::span<const float> pixels, const ops::Tensor& features);
  // Computes, or queues on a device, about `operations` multiplications and additions: one piece at least. On a device
  // only a call that brings features to the host waits, and unless `operations` is infinite it does nothing else.
  bool advance(double operations);

 private:
  struct Linear {
    WeightMatrix weight;
    std::span<const float> bias;
  };
  struct Layer {
    ops::LayerNormWeight norm1, norm2;
    std::vector<WeightMatrix> qkv;
    std::vector<float> qkv_bias;
    std::span<const float> qkv_bias_placed;
    Linear out_proj;
    ops::GeluMlpWeights mlp;
  };
  // Views into the workspace: of all patches of a pass, then of a block of rows.
  struct Activations {
    ops::Tensor residual, packed, rotary;
    ops::Tensor normed, attended, delta, projected;
    ops::Tensor pixels, features;  // where memory is a device's
  };
  enum class Phase : std::uint8_t { embed, inputs, attend, feed_forward, project, fetch, done };

  ops::Limits limits(std::int64_t patches) const;
  std::int64_t carve(std::byte* memory, std::int64_t patches, Activations& at) const;
  void place(ops::GeluMlpWeights& weights);
  void place(ops::LayerNormWeight& norm);
  void begin_pass();
  void add_segment(const PatchGrid& segment);
  std::int64_t pass_patches() const { return segment_begin_.back(); }
  std::int64_t count() const;
  double operations() const;
  void piece();
  void next();
  void embed(std::int64_t first, std::int64_t count);
  void attention_inputs(const Layer& layer, std::int64_t first, std::int64_t count);
  void attend(std::int64_t first, std::int64_t count);
  void feed_forward(const Layer& layer, std::int64_t first, std::int64_t count);
  void project(std::int64_t first, std::int64_t count);
  void fetch(std::int64_t first, std::int64_t count);

  const ModelConfig* config_;
  const VisionConfig* vision_;
  ops::Backend* backend_;
  VisionBlocks blocks_;
  ops::VisionHeads heads_;
  std::int64_t merged_patches_ = 4;
  std::vector<float> inv_freq_;  // [13]
  WeightMatrix patch_embedding_;
  ops::LayerNormWeight pre_norm_;
  std::vector<Layer> layers_;
  ops::GeluMlpWeights projector_, merge_;
  WeightPlacement placement_;
  std::int64_t most_patches_ = 0;
  Activations at_;

  // Of the pictures at hand.
  std::vector<PatchGrid> segments_;
  const float* pixels_ = nullptr;
  ops::Tensor features_;
  std::size_t next_segment_ = 0;  // of the next pass
  std::int64_t done_ = 0;         // patches of passes that have run
  // Of the pass at hand, as many whole segments as were planned for.
  std::vector<std::int32_t> positions_;            // [patches, 3] t, h, w
  std::vector<std::int32_t> segment_begin_ = {0};  // [segments + 1]
  std::int64_t longest_segment_ = 0;
  // The next piece.
  Phase phase_ = Phase::done;
  std::size_t layer_ = 0;
  std::int64_t first_ = 0;   // row of its block
  std::int64_t inside_ = 0;  // attention: row inside of the block
};

}  // namespace m3::model
