#include "src/model/vision_tower.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/model/carver.h"

namespace m3::model {

namespace {

constexpr std::int64_t most_grid_patches = std::int64_t{1} << 30;

ops::LayerNormWeight norm_of(const VisionNorm& norm, float eps) {
  return {.weight = norm.weight, .bias = norm.bias, .eps = eps};
}

ops::GeluMlpWeights mlp_of(const VisionLinear& first, const VisionLinear& second) {
  return {.fc1 = first.weight, .fc1_bias = first.bias, .fc2 = second.weight, .fc2_bias = second.bias};
}

// Rows [first, first + count).
ops::Tensor rows_of(ops::Tensor tensor, std::int64_t first, std::int64_t count) {
  tensor.data = tensor.row(first);
  tensor.rows = count;
  return tensor;
}

}  // namespace

VisionTower::VisionTower(const ModelConfig& config, const VisionWeights& weights, ops::Backend& backend)
    : config_(&config), vision_(config.vision ? &*config.vision : nullptr), weights_(&weights), backend_(&backend) {
  if (vision_ == nullptr) fail("this checkpoint has no vision tower: its config.json lacks vision_config");
  if (vision_->head_dim() != ops::vision_head_dim) {
    fail(
        "the vision tower has heads of {} values (vision_config.hidden_size {} / num_attention_heads {}); supported: "
        "{}",
        vision_->head_dim(), vision_->hidden_size, vision_->num_attention_heads, ops::vision_head_dim);
  }
  heads_ = {.heads = vision_->num_attention_heads, .scale = 1.0f / std::sqrt(float{ops::vision_head_dim})};
  merged_patches_ = std::int64_t{vision_->spatial_merge_size} * vision_->spatial_merge_size;
  block_rows_ = std::max(merged_patches_, block_rows_ / merged_patches_ * merged_patches_);
  inv_freq_.resize(ops::vision_rotary_pairs / 3);
  ops::plain_inverse_frequencies(vision_->rope_theta, inv_freq_);
  for (const VisionLayerWeights& stored : weights.layers) {
    Layer layer{.weights = &stored,
                .qkv = {stored.q_proj.weight, stored.k_proj.weight, stored.v_proj.weight},
                .qkv_bias = stored.q_proj.bias,
                .mlp = mlp_of(stored.fc1, stored.fc2)};
    for (const VisionLinear* linear : {&stored.k_proj, &stored.v_proj}) {
      layer.qkv_bias.insert(layer.qkv_bias.end(), linear->bias.begin(), linear->bias.end());
    }
    layers_.push_back(std::move(layer));
  }
  projector_ = mlp_of(weights.projector_1, weights.projector_2);
  merge_ = mlp_of(weights.merge_1, weights.merge_2);
}

void VisionTower::check(const PatchGrid& grid) const {
  const std::int64_t merge = vision_->spatial_merge_size;
  for (const std::int64_t side : {grid.t, grid.h, grid.w}) {
    if (side < 1 || side > most_grid_patches) {
      fail_usage("a picture of {} x {} x {} patches: each number must be from 1", grid.t, grid.h, grid.w);
    }
  }
  if (grid.h % merge != 0 || grid.w % merge != 0) {
    fail_usage("a picture of {} x {} patches: both must be multiples of {}, since {} patches make a token", grid.h,
               grid.w, merge, merged_patches_);
  }
  if (grid.h * grid.w > most_grid_patches || grid.t * (grid.h * grid.w) > most_grid_patches) {
    fail_usage("a picture of {} x {} x {} patches is too large", grid.t, grid.h, grid.w);
  }
}

std::int64_t VisionTower::segment_patches(const PatchGrid& grid) const {
  return std::min<std::int64_t>(grid.t, vision_->segment_max_frames) * grid.h * grid.w;
}

ops::Limits VisionTower::limits(std::int64_t patches) const {
  const std::int64_t projector = vision_->projector_hidden_size;
  return {.vision_rows = block_rows_,
          .vision_columns = std::max(
              {std::int64_t{vision_->hidden_size}, vision_->patch_elements(), feature_columns() * merged_patches_}),
          .vision_inner = std::max<std::int64_t>(vision_->intermediate_size, projector),
          .vision_segment = patches};
}

std::int64_t VisionTower::carve(std::byte* memory, std::int64_t patches, Activations& at) const {
  const DType dtype = backend_->activation_dtype();
  const std::int64_t width = vision_->hidden_size;
  const std::int64_t block = std::min(block_rows_, patches);
  Carver carver(memory);
  at.residual = carver.tensor(dtype, patches, width);
  at.packed = carver.tensor(dtype, patches, 3 * width);
  at.rotary = carver.tensor(DType::f32, patches, 2 * ops::vision_rotary_pairs);
  at.normed = carver.tensor(dtype, block, width);
  at.attended = carver.tensor(dtype, block, width);
  at.delta = carver.tensor(dtype, block, width);
  at.projected = carver.tensor(dtype, block, feature_columns());
  return carver.used();
}

std::int64_t VisionTower::workspace_bytes(std::int64_t patches) const {
  Activations unused;
  return carve(nullptr, patches, unused) + backend_->workspace_bytes(limits(patches));
}

void VisionTower::bind_workspace(std::span<std::byte> workspace, std::int64_t patches) {
  if (static_cast<std::int64_t>(workspace.size()) < workspace_bytes(patches)) {
    fail_internal("a vision workspace of {} bytes where {} are needed", workspace.size(), workspace_bytes(patches));
  }
  most_patches_ = patches;
  const auto own = static_cast<std::size_t>(carve(workspace.data(), patches, at_));
  backend_->bind_workspace(workspace.subspan(own), limits(patches));
}

// Positions in the order of the patches: merge blocks row by row, inside a block row by row (spec §4.3).
void VisionTower::add_segment(const PatchGrid& segment) {
  const std::int64_t merge = vision_->spatial_merge_size;
  for (std::int64_t t = 0; t < segment.t; ++t) {
    for (std::int64_t i = 0; i < segment.h * segment.w; ++i) {
      const std::int64_t block = i / merged_patches_;
      const std::int64_t inside = i % merged_patches_;
      const std::int64_t blocks = segment.w / merge;  // of a row
      const std::int64_t h = block / blocks * merge + inside / merge;
      const std::int64_t w = block % blocks * merge + inside % merge;
      for (const std::int64_t position : {t, h, w}) positions_.push_back(static_cast<std::int32_t>(position));
    }
  }
  segment_begin_.push_back(static_cast<std::int32_t>(positions_.size() / 3));
}

template <typename Work>
void VisionTower::each_block(const Work& work) const {
  const std::int64_t patches = segment_begin_.back();
  for (std::int64_t first = 0; first < patches; first += block_rows_) {
    work(first, std::min(block_rows_, patches - first));
  }
}

// Segments never see each other, so a pass takes as many whole ones as were planned for.
void VisionTower::forward(std::span<const PatchGrid> grids, std::span<const float> pixels,
                          const ops::Tensor& features) {
  std::int64_t patches = 0;
  for (const PatchGrid& grid : grids) {
    check(grid);
    if (segment_patches(grid) > most_patches_) {
      fail_usage("a picture of {} x {} patches in {} frames at once has {} patches, but {} were planned for", grid.h,
                 grid.w, std::min<std::int64_t>(grid.t, vision_->segment_max_frames), segment_patches(grid),
                 most_patches_);
    }
    patches += grid.patches();
  }
  if (std::ssize(pixels) != patches * pixel_columns() || features.rows * merged_patches_ != patches) {
    fail_internal("vision: {} pixel values and {} feature rows for {} patches of {}", pixels.size(), features.rows,
                  patches, pixel_columns());
  }
  std::int64_t done = 0;  // patches of passes that have run
  const auto begin_pass = [&] {
    positions_.clear();
    segment_begin_.assign(1, 0);
  };
  const auto end_pass = [&] {
    const std::int64_t count = segment_begin_.back();
    if (count == 0) return;
    run_pass(pixels.data() + done * pixel_columns(),
             rows_of(features, done / merged_patches_, count / merged_patches_));
    done += count;
    begin_pass();
  };
  begin_pass();
  for (const PatchGrid& grid : grids) {
    for (std::int64_t t = 0; t < grid.t; t += vision_->segment_max_frames) {
      const PatchGrid segment{std::min<std::int64_t>(vision_->segment_max_frames, grid.t - t), grid.h, grid.w};
      if (segment_begin_.back() + segment.patches() > most_patches_) end_pass();
      add_segment(segment);
    }
  }
  end_pass();
}

void VisionTower::run_pass(const float* pixels, const ops::Tensor& features) {
  const std::int64_t patches = segment_begin_.back();
  const std::int64_t columns = pixel_columns();
  backend_->vision_rotary_table(positions_, inv_freq_, rows_of(at_.rotary, 0, patches));
  each_block([&](std::int64_t first, std::int64_t count) {
    // Operations take tensors that they may write; pixels they only read.
    auto* values = reinterpret_cast<std::byte*>(const_cast<float*>(pixels + first * columns));
    const ops::Tensor embedded = rows_of(at_.delta, 0, count);
    backend_->patch_embed({DType::f32, count, columns, columns, values}, weights_->patch_embedding, embedded);
    backend_->layer_norm(embedded, {}, norm_of(weights_->pre_layrnorm, vision_->layer_norm_eps),
                         rows_of(at_.residual, first, count));
  });
  for (const Layer& layer : layers_) {
    each_block([&](std::int64_t first, std::int64_t count) { attention_inputs(layer, first, count); });
    each_block([&](std::int64_t first, std::int64_t count) { attend_and_feed_forward(layer, first, count); });
  }
  each_block([&](std::int64_t first, std::int64_t count) { project(first, count, features); });
}

// h -> q, k, v of these rows; attention needs those of all rows before it can begin.
void VisionTower::attention_inputs(const Layer& layer, std::int64_t first, std::int64_t count) {
  const ops::Tensor normed = rows_of(at_.normed, 0, count);
  const ops::Tensor packed = rows_of(at_.packed, first, count);
  backend_->layer_norm(rows_of(at_.residual, first, count), {},
                       norm_of(layer.weights->layer_norm1, vision_->layer_norm_eps), normed);
  backend_->linear_bias(normed, layer.qkv, layer.qkv_bias, packed);
  backend_->vision_qkv_finish(heads_, packed, rows_of(at_.rotary, first, count));
}

void VisionTower::attend_and_feed_forward(const Layer& layer, std::int64_t first, std::int64_t count) {
  const ops::Tensor residual = rows_of(at_.residual, first, count);
  const ops::Tensor normed = rows_of(at_.normed, 0, count);
  const ops::Tensor attended = rows_of(at_.attended, 0, count);
  const ops::Tensor delta = rows_of(at_.delta, 0, count);
  const VisionLinear& out_proj = layer.weights->out_proj;
  backend_->attend_segments(heads_, rows_of(at_.packed, 0, segment_begin_.back()), segment_begin_, first, attended);
  backend_->linear_bias(attended, {&out_proj.weight, 1}, out_proj.bias, delta);
  backend_->layer_norm(residual, delta, norm_of(layer.weights->layer_norm2, vision_->layer_norm_eps), normed);
  backend_->gelu_mlp(normed, layer.mlp, delta);
  backend_->layer_norm(residual, delta, {}, {});
}

// Each patch to the text model's width, then every four of them to one row (spec §4.7).
void VisionTower::project(std::int64_t first, std::int64_t count, const ops::Tensor& features) {
  ops::Tensor projected = rows_of(at_.projected, 0, count);
  backend_->gelu_mlp(rows_of(at_.residual, first, count), projector_, projected);
  projected.rows = count / merged_patches_;
  projected.columns = projected.row_stride = feature_columns() * merged_patches_;
  backend_->gelu_mlp(projected, merge_, rows_of(features, first / merged_patches_, projected.rows));
}

}  // namespace m3::model
