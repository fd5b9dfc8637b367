#include "bench/gpu/bench.h"

namespace m3::gpu_bench {

// The tower's operations on a picture of 672 x 672 pixels, then on a block of rows of one of 2016 x 2016.
void bench_vision(Bench& bench) {
  struct Case {
    std::int64_t rows, segment;
  };
  constexpr std::int64_t tower = 1280, inner = 5120, patch = 1176;
  for (const Case& shape : {Case{2304, 2304}, Case{8192, 20736}}) {
    const ops::Limits limits{.vision_rows = shape.rows,
                             .vision_columns = std::int64_t{4} * hidden,
                             .vision_inner = hidden,
                             .vision_segment = shape.segment};
    const std::int64_t rows = shape.rows;
    const auto floats = [&](std::int64_t count) {
      return std::span(reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, count).values),
                       static_cast<std::size_t>(count));
    };
    const auto operations = [&](std::int64_t a, std::int64_t b) { return 2.0 * static_cast<double>(rows * a * b); };
    const std::string what = std::to_string(rows) + " patches";
    const auto index = [](int i) { return static_cast<std::size_t>(i); };
    // Seconds of a call that moves so many bytes; `make` makes as many operands as it is told, and gives the call.
    const auto time = [&](std::int64_t bytes, const auto& make) {
      const int copies = copies_for(static_cast<double>(bytes));
      bench.bind(limits);
      return bench.time(copies, make(copies));
    };
    const auto finish = [&](const char* operation, const std::string& name, double seconds, double count) {
      bench.row_matmul(operation, name, seconds, count);
      bench.clear();
    };

    finish("patch_embed", what,
           time(rows * (patch * 4 + tower * 2) + tower * patch * 4,
                [&](int copies) {
                  return [&bench, index, pixels = bench.rotating_floats(copies, rows, patch, 1),
                          weights = bench.weights(copies, WeightFormat::f32, tower, patch),
                          y = bench.rotating(copies, rows, tower)](int i) {
                    bench.backend->patch_embed(pixels[i], weights[index(i)], y[i]);
                  };
                }),
           operations(patch, tower));
    const double norm_seconds = time(rows * tower * 2 * 4, [&](int copies) {
      return [&bench, x = bench.rotating(copies, rows, tower), delta = bench.rotating(copies, rows, tower),
              y = bench.rotating(copies, rows, tower), weight = floats(tower), bias = floats(tower)](int i) {
        bench.backend->layer_norm(x[i], delta[i], {weight, bias, 1e-5f}, y[i]);
      };
    });
    bench.row_read("layer_norm", what, norm_seconds, static_cast<double>(rows * tower * 2 * 4));
    bench.clear();
    for (const std::int64_t parts : {3, 1}) {
      const std::int64_t bytes = rows * (1 + parts) * tower * 2 + parts * tower * tower * 2;
      finish("linear_bias", what + ", 1280 -> " + std::to_string(parts * tower),
             time(bytes,
                  [&](int copies) {
                    return [&bench, parts, x = bench.rotating(copies, rows, tower),
                            y = bench.rotating(copies, rows, parts * tower), bias = floats(parts * tower),
                            weights = bench.weights(copies * static_cast<int>(parts), WeightFormat::bf16, tower,
                                                    tower)](int i) {
                      const auto set = std::span(weights).subspan(static_cast<std::size_t>(i * parts),
                                                                  static_cast<std::size_t>(parts));
                      bench.backend->linear_bias(x[i], set, bias, y[i]);
                    };
                  }),
             operations(tower, parts * tower));
    }
    const ops::VisionHeads heads{.heads = 16, .scale = 0.1118034f};
    const std::int64_t qkv_bytes = rows * (2 * tower * 2 * 2 + 78 * 4);
    const double qkv_seconds = time(qkv_bytes, [&](int copies) {
      return [&bench, heads, qkv = bench.rotating(copies, rows, 3 * tower),
              table = bench.rotating_floats(copies, rows, 78, 1)](int i) {
        bench.backend->vision_qkv_finish(heads, qkv[i], table[i]);
      };
    });
    bench.row_read("vision_qkv", what, qkv_seconds, static_cast<double>(qkv_bytes));
    bench.clear();
    const std::vector<std::int32_t> segments = {0, static_cast<std::int32_t>(shape.segment)};
    finish("attend_segments", std::to_string(rows) + " on " + std::to_string(shape.segment),
           time(shape.segment * 3 * tower * 2,
                [&](int copies) {
                  return [&bench, heads, &segments, packed = bench.rotating(copies, shape.segment, 3 * tower),
                          y = bench.rotating(copies, rows, tower)](int i) {
                    bench.backend->attend_segments(heads, packed[i], segments, 0, y[i]);
                  };
                }),
           2 * operations(tower, shape.segment));
    const auto mlp = [&](std::int64_t columns, std::int64_t middle, std::int64_t out, std::int64_t count) {
      const std::int64_t bytes = middle * (columns + out) * 2 + count * (columns + out) * 2;
      finish("gelu_mlp",
             std::to_string(count) + " x " + std::to_string(columns) + " -> " + std::to_string(middle) + " -> " +
                 std::to_string(out),
             time(bytes,
                  [&](int copies) {
                    return [&bench, index, fc1 = bench.weights(copies, WeightFormat::bf16, middle, columns),
                            fc2 = bench.weights(copies, WeightFormat::bf16, out, middle), bias1 = floats(middle),
                            bias2 = floats(out), from = bench.rotating(copies, count, columns),
                            to = bench.rotating(copies, count, out)](int i) {
                      bench.backend->gelu_mlp(from[i], {fc1[index(i)], bias1, fc2[index(i)], bias2}, to[i]);
                    };
                  }),
             2.0 * static_cast<double>(count * middle * (columns + out)));
    };
    mlp(tower, inner, tower, rows);
    mlp(tower, hidden, hidden, rows);
    mlp(4 * hidden, hidden, hidden, rows / 4);
  }
}

}  // namespace m3::gpu_bench
