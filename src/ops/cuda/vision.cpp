// The vision tower's operations: shapes are checked, scratch memory is taken, kernels are queued.
#include <algorithm>

#include "src/base/error.h"
#include "src/ops/cuda/backend.h"
#include "src/ops/host/host_backend.h"
#include "src/ops/host/segments.h"

namespace m3::ops::cuda {

namespace {

std::uint16_t* halves(const Tensor& tensor) { return reinterpret_cast<std::uint16_t*>(tensor.data); }
float* floats(const Tensor& tensor) { return reinterpret_cast<float*>(tensor.data); }

// The checkpoint has no such weights in a tower; the scratch memory of a product is not planned for them.
void refuse_quantised_activations(const WeightMatrix& weight) {
  if (weight.quantized_activations) fail_internal("a weight of the vision tower that quantises activations");
}

struct PositionScratch {
  PositionScratch(Arena& arena, std::int64_t rows)
      : positions(arena.take<std::int32_t>(3 * rows)), inv_freq(arena.take<float>(vision_rotary_pairs / 3)) {}
  std::int32_t* positions;
  float* inv_freq;
};

}  // namespace

std::int64_t CudaBackend::vision_scratch_bytes(const Limits& limits) const {
  const std::int64_t positions = bytes_of<PositionScratch>(std::max(limits.vision_rows, limits.vision_segment));
  Arena inner;
  inner.take<std::uint16_t>(limits.vision_rows * limits.vision_inner);
  return std::max(positions, inner.used());
}

void CudaBackend::patch_embed(const Tensor& pixels, const WeightMatrix& weight, const Tensor& out) {
  check_tensor(pixels, DType::f32, out.rows, weight.columns, "patch_embed: pixels");
  check_tensor(out, DType::bf16, out.rows, weight.rows, "patch_embed: out");
  refuse_quantised_activations(weight);
  PatchEmbedArgs args;
  args.patches = out.rows;
  args.pixels = floats(pixels);
  args.pixel_stride = pixels.row_stride;
  args.weight = weight;
  args.row_bytes = weight.row_bytes();
  args.scale_bytes = weight.scale_row_bytes();
  args.out = halves(out);
  args.out_stride = out.row_stride;
  check(launch_patch_embed(args, stream_), "patch_embed");
}

void CudaBackend::vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                                      const Tensor& table) {
  check_tensor(table, DType::f32, std::ssize(positions) / 3, 2 * vision_rotary_pairs, "vision_rotary_table");
  if (std::ssize(positions) != 3 * table.rows || std::ssize(inv_freq) != vision_rotary_pairs / 3) {
    fail_internal("vision_rotary_table: {} positions and {} frequencies for {} rows", positions.size(), inv_freq.size(),
                  table.rows);
  }
  Arena arena = scratch();
  const PositionScratch placed(arena, table.rows);
  upload(reinterpret_cast<std::byte*>(placed.positions), std::as_bytes(positions));
  upload(reinterpret_cast<std::byte*>(placed.inv_freq), std::as_bytes(inv_freq));
  check(launch_vision_rotary_table(placed.positions, static_cast<int>(table.rows), placed.inv_freq, floats(table),
                                   table.row_stride, stream_),
        "vision_rotary_table");
}

void CudaBackend::layer_norm(const Tensor& residual, const Tensor& delta, const LayerNormWeight& norm,
                             const Tensor& normed) {
  const std::int64_t columns = residual.columns;
  check_tensor(residual, DType::bf16, residual.rows, columns, "layer_norm: residual");
  if (!delta.empty()) check_tensor(delta, DType::bf16, residual.rows, columns, "layer_norm: delta");
  if (!normed.empty()) {
    check_tensor(normed, DType::bf16, residual.rows, columns, "layer_norm: normed");
    if (std::ssize(norm.weight) != columns || std::ssize(norm.bias) != columns) {
      fail_internal("layer_norm: {} weights and {} biases for {} columns", norm.weight.size(), norm.bias.size(),
                    columns);
    }
  }
  AddNormArgs args;
  args.rows = static_cast<int>(residual.rows);
  args.columns = static_cast<int>(columns);
  args.residual = halves(residual);
  args.residual_stride = residual.row_stride;
  args.delta = halves(delta);
  args.delta_stride = delta.row_stride;
  args.normed = halves(normed);
  args.normed_stride = normed.row_stride;
  args.weight = norm.weight.data();
  args.bias = norm.bias.data();
  args.eps = norm.eps;
  check(launch_layer_norm(args, stream_), "layer_norm");
}

void CudaBackend::linear_bias(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                              const Tensor& out) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) {
    check_tensor(x, DType::bf16, x.rows, weight.columns, "linear_bias: x");
    refuse_quantised_activations(weight);
    rows += weight.rows;
  }
  check_tensor(out, DType::bf16, x.rows, rows, "linear_bias: out");
  if (std::ssize(bias) != rows) fail_internal("linear_bias: {} biases for {} rows", bias.size(), rows);
  multiply(x, weights, bias, Store::bf16, out, {}, "linear_bias");
}

void CudaBackend::vision_qkv_finish(const VisionHeads& args, const Tensor& packed, const Tensor& table) {
  check_tensor(packed, DType::bf16, packed.rows, 3 * args.heads * vision_head_dim, "vision_qkv_finish: packed");
  check_tensor(table, DType::f32, packed.rows, 2 * vision_rotary_pairs, "vision_qkv_finish: table");
  check(launch_vision_qkv_finish(halves(packed), packed.row_stride, static_cast<int>(packed.rows), args.heads,
                                 floats(table), table.row_stride, stream_),
        "vision_qkv_finish");
}

void CudaBackend::attend_segments(const VisionHeads& args, const Tensor& packed,
                                  std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                                  const Tensor& out) {
  const std::int64_t width = args.heads * vision_head_dim;
  if (out.rows == 0) return;
  check_tensor(packed, DType::bf16, first_row + out.rows, 3 * width, "attend_segments: packed");
  check_tensor(out, DType::bf16, out.rows, width, "attend_segments: out");
  segment_of(segment_begin, first_row);
  segment_of(segment_begin, first_row + out.rows - 1);
  VisionAttendArgs launch;
  launch.packed = halves(packed);
  launch.packed_stride = packed.row_stride;
  launch.heads = args.heads;
  launch.scale = args.scale;
  launch.segment_begin = place_segments(segment_begin);
  launch.segments = static_cast<int>(segment_begin.size()) - 1;
  const auto holds = [&](std::int64_t row) {
    return static_cast<int>(std::ranges::upper_bound(segment_begin, row) - segment_begin.begin()) - 1;
  };
  launch.first_segment = holds(first_row);
  launch.last_segment = holds(first_row + out.rows - 1);
  launch.first_row = first_row;
  launch.rows = static_cast<int>(out.rows);
  launch.out = halves(out);
  launch.out_stride = out.row_stride;
  launch.deterministic = deterministic_;
  check(launch_vision_attend(launch, stream_), "attend_segments");
}

// The same list serves all layers of a picture.
const std::int32_t* CudaBackend::place_segments(std::span<const std::int32_t> segment_begin) {
  std::byte* memory = segment_list_.reserve(segment_begin.size_bytes());
  if (memory != segments_at_ || !std::ranges::equal(segments_, segment_begin)) {
    upload(memory, std::as_bytes(segment_begin));
    segments_.assign(segment_begin.begin(), segment_begin.end());
    segments_at_ = memory;
  }
  return reinterpret_cast<const std::int32_t*>(memory);
}

void CudaBackend::gelu_mlp(const Tensor& hidden, const GeluMlpWeights& weights, const Tensor& out) {
  check_gelu_mlp(weights);
  check_tensor(hidden, DType::bf16, hidden.rows, weights.fc1.columns, "gelu_mlp: hidden");
  check_tensor(out, DType::bf16, hidden.rows, weights.fc2.rows, "gelu_mlp: out");
  refuse_quantised_activations(weights.fc1);
  refuse_quantised_activations(weights.fc2);
  const std::int64_t width = weights.fc1.rows;
  Arena arena = scratch();
  auto* memory = arena.take<std::uint16_t>(hidden.rows * width);
  const Tensor inner{DType::bf16, hidden.rows, width, width, reinterpret_cast<std::byte*>(memory)};
  if (!multiply(hidden, {&weights.fc1, 1}, weights.fc1_bias, Store::bf16, inner, {}, "gelu_mlp: fc1", Then::gelu))
    check(launch_gelu(memory, hidden.rows * width, memory, stream_), "gelu_mlp: gelu");
  multiply(inner, {&weights.fc2, 1}, weights.fc2_bias, Store::bf16, out, {}, "gelu_mlp: fc2");
}

}  // namespace m3::ops::cuda
