#include "bench/gpu/bench.h"

namespace m3::gpu_bench {

// The tower's operations on a picture of 672 x 672 pixels, then on a block of rows of one of 2016 x 2016.
void bench_vision(Bench& bench) {
  struct Case {
    std::int64_t rows, segment;
  };
  constexpr std::int64_t tower = 1280, inner = 5120, patch = 1176;
  for (const Case& shape : {Case{2304, 2304}, Case{8192, 20736}}) {
    bench.bind({.vision_rows = shape.rows,
                .vision_columns = std::int64_t{4} * hidden,
                .vision_inner = hidden,
                .vision_segment = shape.segment});
    const std::int64_t rows = shape.rows;
    const auto floats = [&](std::int64_t count) {
      return std::span(reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, count).values),
                       static_cast<std::size_t>(count));
    };
    const auto operations = [&](std::int64_t a, std::int64_t b) { return 2.0 * static_cast<double>(rows * a * b); };
    const std::string what = std::to_string(rows) + " patches";
    const RandomFill unit{.kind = RandomFill::Kind::f32, .parameter = 1};
    const ops::Tensor x = bench.activations(rows, tower), delta = bench.activations(rows, tower);
    const ops::Tensor y = bench.activations(rows, tower), packed = bench.activations(shape.segment, 3 * tower);
    const ops::Tensor table{DType::f32, rows, 78, 78, bench.random(rows * 78 * 4, unit)};
    const ops::Tensor pixels{DType::f32, rows, patch, patch, bench.random(rows * patch * 4, unit)};
    ops::Tensor qkv = packed;
    qkv.rows = rows;

    const WeightMatrix embedding = bench.weight(WeightFormat::f32, tower, patch);
    bench.row_matmul("patch_embed", what, bench.time(2, [&](int) { bench.backend->patch_embed(pixels, embedding, y); }),
                     operations(patch, tower));
    const ops::LayerNormWeight norm{floats(tower), floats(tower), 1e-5f};
    bench.row_read("layer_norm", what, bench.time(8, [&](int) { bench.backend->layer_norm(x, delta, norm, y); }),
                   static_cast<double>(rows * tower * 2 * 4));
    const std::vector<WeightMatrix> in = {bench.weight(WeightFormat::bf16, tower, tower),
                                          bench.weight(WeightFormat::bf16, tower, tower),
                                          bench.weight(WeightFormat::bf16, tower, tower)};
    const std::span<const float> in_bias = floats(3 * tower), out_bias = floats(tower);
    bench.row_matmul("linear_bias", what + ", 1280 -> 3840",
                     bench.time(2, [&](int) { bench.backend->linear_bias(x, in, in_bias, qkv); }),
                     operations(tower, 3 * tower));
    bench.row_matmul("linear_bias", what + ", 1280 -> 1280",
                     bench.time(2,
                                [&](int) {
                                  bench.backend->linear_bias(x, {&in[0], 1}, out_bias, y);
                                }),
                     operations(tower, tower));
    const ops::VisionHeads heads{.heads = 16, .scale = 0.1118034f};
    bench.row_read("vision_qkv", what, bench.time(8, [&](int) { bench.backend->vision_qkv_finish(heads, qkv, table); }),
                   static_cast<double>(rows * (2 * tower * 2 * 2 + 78 * 4)));
    const std::vector<std::int32_t> segments = {0, static_cast<std::int32_t>(shape.segment)};
    bench.row_matmul("attend_segments", std::to_string(rows) + " on " + std::to_string(shape.segment),
                     bench.time(2, [&](int) { bench.backend->attend_segments(heads, packed, segments, 0, y); }),
                     2 * operations(tower, shape.segment));
    const auto mlp = [&](std::int64_t columns, std::int64_t middle, std::int64_t out, std::int64_t count) {
      const ops::GeluMlpWeights weights{bench.weight(WeightFormat::bf16, middle, columns), floats(middle),
                                        bench.weight(WeightFormat::bf16, out, middle), floats(out)};
      const ops::Tensor from = bench.activations(count, columns), to = bench.activations(count, out);
      bench.row_matmul("gelu_mlp",
                       std::to_string(count) + " x " + std::to_string(columns) + " -> " + std::to_string(middle) +
                           " -> " + std::to_string(out),
                       bench.time(2, [&](int) { bench.backend->gelu_mlp(from, weights, to); }),
                       2.0 * static_cast<double>(count * middle * (columns + out)));
    };
    mlp(tower, inner, tower, rows);
    mlp(tower, hidden, hidden, rows);
    mlp(4 * hidden, hidden, hidden, rows / 4);
    bench.clear();
  }
}

}  // namespace m3::gpu_bench
