#include "src/model/vision_tower.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/model/carver.h"
#include "src/ops/backends.h"

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

constexpr std::int64_t least_attention_rows = 128;  // of a call: fewer would read the keys too often

}  // namespace

VisionBlocks VisionBlocks::of(const ops::Backend& backend) {
  if (backend.has_host_memory()) return {};
  return {.rows = 8192, .pixel_rows = 2048, .operations = 1.5e12, .company = 2048};
}

VisionTower::VisionTower(const ModelConfig& config, const VisionWeights& weights, ops::Backend& backend,
                         const VisionBlocks& blocks)
    : config_(&config),
      vision_(config.vision ? &*config.vision : nullptr),
      backend_(&backend),
      blocks_(blocks),
      placement_(backend) {
  if (vision_ == nullptr) fail("this checkpoint has no vision tower: its config.json lacks vision_config");
  if (vision_->head_dim() != ops::vision_head_dim) {
    fail(
        "the vision tower has heads of {} values (vision_config.hidden_size {} / num_attention_heads {}); supported: "
        "{}",
        vision_->head_dim(), vision_->hidden_size, vision_->num_attention_heads, ops::vision_head_dim);
  }
  heads_ = {.heads = vision_->num_attention_heads, .scale = 1.0f / std::sqrt(float{ops::vision_head_dim})};
  merged_patches_ = std::int64_t{vision_->spatial_merge_size} * vision_->spatial_merge_size;
  blocks_.rows = std::max(merged_patches_, blocks_.rows / merged_patches_ * merged_patches_);
  blocks_.pixel_rows = std::min(blocks_.pixel_rows, blocks_.rows);
  ops::check_limits(backend, limits(0));
  inv_freq_.resize(ops::vision_rotary_pairs / 3);
  ops::plain_inverse_frequencies(vision_->rope_theta, inv_freq_);
  patch_embedding_ = weights.patch_embedding;
  pre_norm_ = norm_of(weights.pre_layrnorm, vision_->layer_norm_eps);
  layers_.reserve(weights.layers.size());
  for (const VisionLayerWeights& stored : weights.layers) {
    Layer& layer = layers_.emplace_back();
    layer.norm1 = norm_of(stored.layer_norm1, vision_->layer_norm_eps);
    layer.norm2 = norm_of(stored.layer_norm2, vision_->layer_norm_eps);
    for (const VisionLinear* linear : {&stored.q_proj, &stored.k_proj, &stored.v_proj}) {
      layer.qkv.push_back(linear->weight);
      layer.qkv_bias.insert(layer.qkv_bias.end(), linear->bias.begin(), linear->bias.end());
    }
    layer.qkv_bias_placed = layer.qkv_bias;
    layer.out_proj = {stored.out_proj.weight, stored.out_proj.bias};
    layer.mlp = mlp_of(stored.fc1, stored.fc2);
  }
  projector_ = mlp_of(weights.projector_1, weights.projector_2);
  merge_ = mlp_of(weights.merge_1, weights.merge_2);

  placement_.add(patch_embedding_);
  place(pre_norm_);
  for (Layer& layer : layers_) {
    place(layer.norm1);
    place(layer.norm2);
    for (WeightMatrix& weight : layer.qkv) placement_.add(weight);
    placement_.add(layer.qkv_bias_placed);
    placement_.add(layer.out_proj.weight);
    placement_.add(layer.out_proj.bias);
    place(layer.mlp);
  }
  place(projector_);
  place(merge_);
}

void VisionTower::place(ops::GeluMlpWeights& weights) {
  for (WeightMatrix* weight : {&weights.fc1, &weights.fc2}) placement_.add(*weight);
  for (std::span<const float>* bias : {&weights.fc1_bias, &weights.fc2_bias}) placement_.add(*bias);
}

void VisionTower::place(ops::LayerNormWeight& norm) {
  placement_.add(norm.weight);
  placement_.add(norm.bias);
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
  return {.vision_rows = std::min(blocks_.rows, patches),
          .vision_columns = std::max(
              {std::int64_t{vision_->hidden_size}, vision_->patch_elements(), feature_columns() * merged_patches_}),
          .vision_inner = std::max<std::int64_t>(vision_->intermediate_size, projector),
          .vision_segment = patches,
          .vision_hidden = vision_->hidden_size};
}

std::int64_t VisionTower::carve(std::byte* memory, std::int64_t patches, Activations& at) const {
  const DType dtype = backend_->activation_dtype();
  const std::int64_t width = vision_->hidden_size;
  const std::int64_t block = std::min(blocks_.rows, patches);
  Carver carver(memory);
  at.residual = carver.tensor(dtype, patches, width);
  at.packed = carver.tensor(dtype, patches, 3 * width);
  at.rotary = carver.tensor(DType::f32, patches, 2 * ops::vision_rotary_pairs);
  at.normed = carver.tensor(dtype, block, width);
  at.attended = carver.tensor(dtype, block, width);
  at.delta = carver.tensor(dtype, block, width);
  at.projected = carver.tensor(dtype, block, feature_columns());
  if (!backend_->has_host_memory()) {
    at.pixels = carver.tensor(DType::f32, std::min(blocks_.pixel_rows, patches), pixel_columns());
    at.features = carver.tensor(dtype, block / merged_patches_, feature_columns());
  }
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
  phase_ = Phase::done;
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

void VisionTower::begin(std::span<const PatchGrid> grids, std::span<const float> pixels, const ops::Tensor& features) {
  phase_ = Phase::done;
  segments_.clear();
  std::int64_t patches = 0;
  for (const PatchGrid& grid : grids) {
    check(grid);
    if (segment_patches(grid) > most_patches_) {
      fail_usage("a picture of {} x {} patches in {} frames at once has {} patches, but {} were planned for", grid.h,
                 grid.w, std::min<std::int64_t>(grid.t, vision_->segment_max_frames), segment_patches(grid),
                 most_patches_);
    }
    patches += grid.patches();
    for (std::int64_t t = 0; t < grid.t; t += vision_->segment_max_frames)
      segments_.push_back({std::min<std::int64_t>(vision_->segment_max_frames, grid.t - t), grid.h, grid.w});
  }
  if (std::ssize(pixels) != patches * pixel_columns() || features.rows * merged_patches_ != patches) {
    fail_internal("vision: {} pixel values and {} feature rows for {} patches of {}", pixels.size(), features.rows,
                  patches, pixel_columns());
  }
  pixels_ = pixels.data();
  features_ = features;
  next_segment_ = 0;
  done_ = 0;
  begin_pass();
}

// Segments never see each other, so a pass takes as many whole ones as were planned for.
void VisionTower::begin_pass() {
  positions_.clear();
  segment_begin_.assign(1, 0);
  longest_segment_ = 0;
  while (next_segment_ < segments_.size() && pass_patches() + segments_[next_segment_].patches() <= most_patches_) {
    longest_segment_ = std::max(longest_segment_, segments_[next_segment_].patches());
    add_segment(segments_[next_segment_++]);
  }
  phase_ = pass_patches() == 0 ? Phase::done : Phase::embed;
  layer_ = 0;
  first_ = inside_ = 0;
}

bool VisionTower::advance(double most) {
  const bool all = std::isinf(most);
  for (double spent = 0; phase_ != Phase::done;) {
    const double own = operations();
    if (spent > 0 && !all && (spent + own > most || phase_ == Phase::fetch)) return false;
    piece();
    const bool fetched = phase_ == Phase::fetch;
    spent += own;
    next();
    if (fetched && !all) break;
  }
  return phase_ == Phase::done;
}

// Rows of the next piece.
std::int64_t VisionTower::count() const {
  const std::int64_t block = std::min(blocks_.rows, pass_patches() - first_);
  if (phase_ == Phase::embed) return std::min(blocks_.pixel_rows, pass_patches() - first_);
  if (phase_ != Phase::attend) return block;
  const double row = 4.0 * vision_->hidden_size * static_cast<double>(longest_segment_);
  const auto rows = static_cast<std::int64_t>(std::min(blocks_.operations / row, 1e9));
  return std::min(std::max(rows / least_attention_rows, std::int64_t{1}) * least_attention_rows, block - inside_);
}

// Multiplications and additions of the next piece.
double VisionTower::operations() const {
  const double width = vision_->hidden_size, inner = vision_->intermediate_size;
  const double projector = vision_->projector_hidden_size, out = static_cast<double>(feature_columns());
  const auto row = [&] {
    switch (phase_) {
      case Phase::embed: return 2 * width * static_cast<double>(pixel_columns());
      case Phase::inputs: return 6 * width * width;
      case Phase::attend: return 4 * width * static_cast<double>(longest_segment_);
      case Phase::feed_forward: return 2 * width * (width + 2 * inner);
      case Phase::project: return 2 * projector * (width + 2 * out + out / static_cast<double>(merged_patches_));
      case Phase::fetch:
      case Phase::done: break;
    }
    return 0.0;
  };
  return static_cast<double>(count()) * row();
}

void VisionTower::piece() {
  switch (phase_) {
    case Phase::embed: return embed(first_, count());
    case Phase::inputs: return attention_inputs(layers_[layer_], first_, count());
    case Phase::attend: return attend(first_ + inside_, count());
    case Phase::feed_forward: return feed_forward(layers_[layer_], first_, count());
    case Phase::project: return project(first_, count());
    case Phase::fetch: return fetch(first_, count());
    case Phase::done: return;
  }
}

// Attention needs q, k and v of all rows before it can begin; the rest of a layer needs its own rows only.
void VisionTower::next() {
  const std::int64_t patches = pass_patches();
  const auto begin = [&](Phase phase) {
    phase_ = phase;
    first_ = inside_ = 0;
  };
  switch (phase_) {
    case Phase::embed:
      first_ += count();
      if (first_ == patches) begin(layers_.empty() ? Phase::project : Phase::inputs);
      return;
    case Phase::inputs:
      first_ += count();
      if (first_ == patches) begin(Phase::attend);
      return;
    case Phase::attend:
      inside_ += count();
      if (inside_ == std::min(blocks_.rows, patches - first_)) phase_ = Phase::feed_forward;
      return;
    case Phase::feed_forward:
      first_ += count();
      inside_ = 0;
      phase_ = Phase::attend;
      if (first_ < patches) return;
      begin(++layer_ == layers_.size() ? Phase::project : Phase::inputs);
      return;
    case Phase::project:
      if (!backend_->has_host_memory()) {
        phase_ = Phase::fetch;
        return;
      }
      [[fallthrough]];
    case Phase::fetch:
      first_ += count();
      phase_ = Phase::project;
      if (first_ < patches) return;
      done_ += patches;
      begin_pass();
      return;
    case Phase::done: return;
  }
}

void VisionTower::embed(std::int64_t first, std::int64_t count) {
  const std::int64_t columns = pixel_columns();
  const float* from = pixels_ + (done_ + first) * columns;
  // Operations take tensors that they may write; pixels they only read.
  auto* values = reinterpret_cast<std::byte*>(const_cast<float*>(from));
  if (!backend_->has_host_memory()) {
    values = at_.pixels.data;
    backend_->upload(values, std::as_bytes(std::span(from, static_cast<std::size_t>(count * columns))));
  }
  const ops::Tensor embedded = rows_of(at_.delta, 0, count);
  backend_->vision_rotary_table(
      std::span(positions_).subspan(static_cast<std::size_t>(3 * first), static_cast<std::size_t>(3 * count)),
      inv_freq_, rows_of(at_.rotary, first, count));
  backend_->patch_embed({DType::f32, count, columns, columns, values}, patch_embedding_, embedded);
  backend_->layer_norm(embedded, {}, pre_norm_, rows_of(at_.residual, first, count));
}

// h -> q, k, v of these rows.
void VisionTower::attention_inputs(const Layer& layer, std::int64_t first, std::int64_t count) {
  const ops::Tensor normed = rows_of(at_.normed, 0, count);
  const ops::Tensor packed = rows_of(at_.packed, first, count);
  backend_->layer_norm(rows_of(at_.residual, first, count), {}, layer.norm1, normed);
  backend_->linear_bias(normed, layer.qkv, layer.qkv_bias_placed, packed);
  backend_->vision_qkv_finish(heads_, packed, rows_of(at_.rotary, first, count));
}

void VisionTower::attend(std::int64_t first, std::int64_t count) {
  backend_->attend_segments(heads_, rows_of(at_.packed, 0, pass_patches()), segment_begin_, first,
                            rows_of(at_.attended, first - first_, count));
}

void VisionTower::feed_forward(const Layer& layer, std::int64_t first, std::int64_t count) {
  const ops::Tensor residual = rows_of(at_.residual, first, count);
  const ops::Tensor normed = rows_of(at_.normed, 0, count);
  const ops::Tensor delta = rows_of(at_.delta, 0, count);
  backend_->linear_bias(rows_of(at_.attended, 0, count), {&layer.out_proj.weight, 1}, layer.out_proj.bias, delta);
  backend_->layer_norm(residual, delta, layer.norm2, normed);
  backend_->gelu_mlp(normed, layer.mlp, delta);
  backend_->layer_norm(residual, delta, {}, {});
}

// Each patch to the text model's width, then every four of them to one row (spec §4.7).
void VisionTower::project(std::int64_t first, std::int64_t count) {
  ops::Tensor projected = rows_of(at_.projected, 0, count);
  backend_->gelu_mlp(rows_of(at_.residual, first, count), projector_, projected);
  projected.rows = count / merged_patches_;
  projected.columns = projected.row_stride = feature_columns() * merged_patches_;
  backend_->gelu_mlp(projected, merge_,
                     backend_->has_host_memory() ? rows_of(features_, (done_ + first) / merged_patches_, projected.rows)
                                                 : rows_of(at_.features, 0, projected.rows));
}

void VisionTower::fetch(std::int64_t first, std::int64_t count) {
  const std::int64_t rows = count / merged_patches_;
  const std::int64_t row_bytes = feature_columns() * static_cast<std::int64_t>(dtype_size(feature_dtype()));
  const ops::Tensor to = rows_of(features_, (done_ + first) / merged_patches_, rows);
  if (to.row_stride == to.columns) {
    backend_->download({to.data, static_cast<std::size_t>(rows * row_bytes)}, at_.features.data);
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row)
    backend_->download({to.row(row), static_cast<std::size_t>(row_bytes)}, at_.features.row(row));
}

}  // namespace m3::model
