// linear and logits.
#include <algorithm>
#include <cmath>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

struct Shape {
  std::int64_t tokens, rows, columns;
};

ops::Limits limits_for(std::int64_t tokens, std::int64_t columns, std::int64_t rows) {
  ops::Limits limits;
  limits.tokens = limits.sequences = limits.logits_rows = tokens;
  limits.hidden = columns;
  limits.widest_linear = limits.vocab = rows;
  return limits;
}

// fp32 sums in two orders, the tensor cores' truncated: each errs by some K · 2^-24 · |x·w| at most, of independent terms
// √K of that; 2^-18 of the largest row's norm leaves a wide margin (tests/ops/linear_test.cpp has the same).
double sum_tolerance(const WeightMatrix& weight) {
  std::vector<float> row(static_cast<std::size_t>(weight.columns));
  double norm = 0;
  for (std::int64_t r = 0; r < std::min<std::int64_t>(weight.rows, 64); ++r) {
    widen_row(weight, r, row.data());
    double squares = 0;
    for (const float value : row) squares += double{value} * value;
    norm = std::max(norm, std::sqrt(squares));
  }
  return norm * std::sqrt(static_cast<double>(weight.columns)) * 0x1p-18;
}

std::vector<float> run(Rig& rig, const std::vector<float>& x, std::int64_t tokens,
                       const std::vector<WeightMatrix>& placed, int padding) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : placed) rows += weight.rows;
  DeviceMatrix input(rig, DType::bf16, tokens, placed[0].columns, x, padding);
  DeviceMatrix out(rig, DType::bf16, tokens, rows, padding);
  rig->linear(input.view(), placed, out.view());
  return out.values();
}

std::vector<float> judged(const std::vector<float>& x, std::int64_t tokens, const std::vector<WeightMatrix>& weights) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) rows += weight.rows;
  Matrix input(DType::f32, tokens, weights[0].columns, x), out(DType::f32, tokens, rows);
  judge(limits_for(tokens, weights[0].columns, rows)).linear(input.view(), weights, out.view());
  return out.values();
}

std::string label(const Shape& shape) {
  return std::to_string(shape.tokens) + " tokens, [" + std::to_string(shape.rows) + ", " +
         std::to_string(shape.columns) + "]";
}

void test_format(Rig& rig, Results& results, WeightFormat format, bool quick) {
  Random random(3);
  const std::string name(weight_format_name(format));
  std::vector<Shape> shapes = {{1, 48, 64},    {3, 33, 192},    {8, 130, 320},  {9, 48, 512},
                               {20, 64, 1024}, {17, 300, 1024}, {150, 200, 640}};
  if (!quick) {
    shapes.insert(shapes.end(), {{1, 400, 6144},
                                 {2, 64, 8192},
                                 {16, 160, 3072},
                                 {32, 96, 6144},
                                 {33, 300, 6144},
                                 {129, 257, 1024},
                                 {300, 512, 3072},
                                 {64, 700, 512},
                                 {65, 257, 1536},
                                 {641, 300, 6144},
                                 {1500, 520, 1024},
                                 {7, 3000, 1024},
                                 {20, 9000, 256},
                                 {40, 8500, 128},
                                 {5, 25, 96},
                                 {6, 7, 160},
                                 {65, 50, 800}});
  }
  // M3's own widths, of which x is held in registers: one tile of a multiprocessor, two and more, none for some.
  if (!quick && format == WeightFormat::bf16) {
    shapes.insert(
        shapes.end(),
        {{8, 100, 6144}, {8, 6400, 6144}, {3, 12800, 6144}, {7, 6337, 3072}, {8, 131, 3072}, {2, 19100, 3072}});
  }
  // Lists of 9 to 64 rows, whose tiles of 256 rows of W several blocks of threads share along K: one tile and many, ends
  // of tiles, every K that M3 has.
  if (!quick) {
    shapes.insert(shapes.end(), {{9, 257, 6144},
                                 {15, 256, 3072},
                                 {16, 128, 8192},
                                 {17, 513, 6144},
                                 {33, 129, 12288},
                                 {47, 1000, 512},
                                 {48, 390, 1536},
                                 {49, 64, 6144},
                                 {63, 700, 3072},
                                 {64, 1, 6144},
                                 {64, 300, 8192},
                                 {65, 300, 6144},
                                 {10, 40000, 512}});
  }
  for (const Shape& shape : shapes) {
    for (const bool exact : {true, false}) {
      const Weight weight(random, format, shape.rows, shape.columns, exact);
      const std::vector<float> x = exact ? integer_values(random, shape.tokens * shape.columns, 3)
                                         : normal_values(random, shape.tokens * shape.columns);
      rig.bind(limits_for(shape.tokens, shape.columns, shape.rows));
      const std::vector<float> expected = judged(x, shape.tokens, {weight.view});
      for (const int padding : {8, 5}) {
        const std::vector<float> actual = run(rig, x, shape.tokens, {rig.place(weight.view)}, padding);
        const std::string what = label(shape) + (exact ? ", integers" : "") + ", padding " + std::to_string(padding);
        // Sums of integers are exact up to 2^24.
        const double absolute = exact ? 1e-30 : sum_tolerance(weight.view);
        results.add("linear", name, exact ? (actual == expected ? 0 : 2) : bf16_error(actual, expected, absolute),
                    "2 steps of bf16 + 2^-18·√K·|w|", what);
      }
      if (!exact && shape.tokens > 8 && shape.tokens <= 65) {
        // Whoever comes last adds the sums, in one order.
        const WeightMatrix placed = rig.place(weight.view);
        const std::vector<float> first = run(rig, x, shape.tokens, {placed}, 8);
        bool same = true;
        for (int again = 0; again < 3; ++again) same = same && run(rig, x, shape.tokens, {placed}, 8) == first;
        results.add_exact("linear", "repeated", same, name + ", " + label(shape));
      }
      rig.clear(results, "linear");
    }
  }
}

// A row's bits whatever the batch, on a deterministic backend.
void test_invariance(Rig& rig, Results& results, WeightFormat format) {
  Random random(4);
  const Weight weight(random, format, 200, 6144, false);
  const std::vector<float> x = normal_values(random, 300 * 6144);
  rig.bind(limits_for(300, 6144, 200));
  const WeightMatrix placed = rig.place(weight.view);
  const std::vector<float> all = run(rig, x, 300, {placed}, 8);
  for (const std::int64_t tokens : {1, 7, 12, 32, 40, 128}) {
    const std::vector<float> some =
        run(rig, std::vector<float>(x.begin(), x.begin() + tokens * 6144), tokens, {placed}, 8);
    const bool same = std::equal(some.begin(), some.end(), all.begin());
    results.add_exact("linear", "invariance", same,
                      std::string(weight_format_name(format)) + ", " + std::to_string(tokens) + " tokens");
  }
  rig.clear(results, "linear");
}

void test_mixed(Rig& rig, Results& results) {
  Random random(5);
  std::deque<Weight> weights;
  std::vector<WeightMatrix> views, placed;
  for (const std::int64_t tokens : {1, 9, 140}) {
    rig.bind(limits_for(tokens, 128, 400));
    weights.clear(), views.clear(), placed.clear();
    for (const WeightFormat format : all_formats) {
      weights.emplace_back(random, format, 8 + 3 * static_cast<std::int64_t>(weights.size()), 128, true);
      views.push_back(weights.back().view);
      placed.push_back(rig.place(views.back()));
    }
    const std::vector<float> x = integer_values(random, tokens * 128, 3);
    results.add_exact("linear", "mixed", run(rig, x, tokens, placed, 8) == judged(x, tokens, views),
                      std::to_string(tokens) + " tokens");
    rig.clear(results, "linear");
  }
}

// Several weights of one format, of rows that no tile divides.
void test_parts(Rig& rig, Results& results, WeightFormat format, std::int64_t columns) {
  Random random(8);
  std::deque<Weight> weights;
  std::vector<WeightMatrix> views, placed;
  for (const std::int64_t tokens : {1, 8, 9, 40, 64}) {
    rig.bind(limits_for(tokens, columns, 2000));
    weights.clear(), views.clear(), placed.clear();
    for (const std::int64_t rows : {700, 3, 130, 1, 65, 901}) {
      weights.emplace_back(random, format, rows, columns, true);
      views.push_back(weights.back().view);
      placed.push_back(rig.place(views.back()));
    }
    const std::vector<float> x = integer_values(random, tokens * columns, 3);
    results.add_exact("linear", "parts", run(rig, x, tokens, placed, 8) == judged(x, tokens, views),
                      std::string(weight_format_name(format)) + ", " + std::to_string(tokens) + " tokens, " +
                          std::to_string(columns) + " columns");
    rig.clear(results, "linear");
  }
}

// Block scales that one factor of bf16 does not hold.
void test_scales(Rig& rig, Results& results, WeightFormat format) {
  Random random(9);
  for (const std::int64_t tokens : {1, 5, 20, 64}) {
    Weight weight(random, format, 150, 1024, false);
    for (std::size_t i = 0; i < weight.scales.size(); i += 3)
      weight.scales[i] = static_cast<std::byte>(110 + i / 3 % 40);
    const std::vector<float> x = normal_values(random, tokens * 1024);
    rig.bind(limits_for(tokens, 1024, 150));
    const std::vector<float> actual = run(rig, x, tokens, {rig.place(weight.view)}, 8);
    double absolute = 0;  // of the largest row
    std::vector<float> row(1024);
    for (std::int64_t r = 0; r < 150; ++r) {
      widen_row(weight.view, r, row.data());
      double squares = 0;
      for (const float value : row) squares += double{value} * value;
      absolute = std::max(absolute, std::sqrt(squares) * 32 * 0x1p-18);
    }
    results.add("linear", "large scales", bf16_error(actual, judged(x, tokens, {weight.view}), absolute),
                "2 steps of bf16 + 2^-18·√K·|w|",
                std::string(weight_format_name(format)) + ", " + std::to_string(tokens) + " tokens");
    rig.clear(results, "linear");
  }
}

// The ends of e8m0: code 0 is 2^-127, 255 NaN.
void test_end_scales(Rig& rig, Results& results, WeightFormat format) {
  Random random(10);
  for (const std::int64_t tokens : {1, 5, 20, 64, 70, 300}) {
    const std::int64_t rows = 150, columns = 1024;
    Weight weight(random, format, rows, columns, true);
    const std::int64_t row_scales = columns / 32;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::byte* const scales = weight.scales.data() + r * row_scales;
      if (r % 3 == 0) std::fill(scales, scales + row_scales, std::byte{0});
      if (r % 3 == 1) scales[r % row_scales] = std::byte{255};
    }
    std::vector<float> x = integer_values(random, tokens * columns, 3);
    for (float& value : x) value *= 0x1p60f;
    rig.bind(limits_for(tokens, columns, rows));
    const std::vector<float> actual = run(rig, x, tokens, {rig.place(weight.view)}, 8);
    results.add("linear", "ends of e8m0", bf16_error(actual, judged(x, tokens, {weight.view}), 0x1p-90),
                "2 steps of bf16", std::string(weight_format_name(format)) + ", " + std::to_string(tokens) + " tokens");
    rig.clear(results, "linear");
  }
}

void test_quantised(Rig& rig, Results& results) {
  Random random(6);
  for (const std::int64_t columns : {320, 300}) {
    for (const std::int64_t tokens : {1, 21, 140}) {
      Weight weight(random, WeightFormat::fp8, 37, columns, false);
      weight.view.quantized_activations = true;
      std::vector<float> x = normal_values(random, tokens * columns);
      std::fill(x.begin(), x.begin() + columns, 0.0f);
      rig.bind(limits_for(tokens, columns, 37));
      const std::vector<float> actual = run(rig, x, tokens, {rig.place(weight.view)}, 8);
      results.add("linear", "ptpc_fp8",
                  bf16_error(actual, judged(x, tokens, {weight.view}), sum_tolerance(weight.view)),
                  "2 steps of bf16 + 2^-18·√K·|w|", std::to_string(tokens) + " tokens");
      rig.clear(results, "linear");
    }
  }
}

void test_logits(Rig& rig, Results& results, WeightFormat format, std::int64_t columns) {
  Random random(7);
  const Weight head(random, format, 1003, columns, false);
  const std::vector<float> x = normal_values(random, 70 * columns);
  for (const std::size_t count : {1u, 5u, 9u, 40u, 64u}) {
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < count; ++i) rows.push_back(static_cast<std::int32_t>((i * 37 + 69) % 70));
    const ops::Limits limits = limits_for(70, columns, 1003);
    Matrix hidden(DType::f32, 70, columns, x);
    Matrix expected(DType::f32, static_cast<std::int64_t>(count), 1003);
    judge(limits).logits(hidden.view(), rows, head.view, expected.view());
    rig.bind(limits);
    DeviceMatrix hidden2(rig, DType::bf16, 70, columns, x);
    DeviceMatrix out(rig, DType::f32, static_cast<std::int64_t>(count), 1003, 3);
    rig->logits(hidden2.view(), {rig.place(rows), rows.size()}, rig.place(head.view), out.view());
    results.add("logits", std::string(weight_format_name(format)),
                absolute_error(out.values(), expected.values(), sum_tolerance(head.view)), "2^-18·√K·|w|",
                std::to_string(count) + " rows, " + std::to_string(columns) + " columns");
    rig.clear(results, "logits");
  }
}

}  // namespace

void test_linear(Rig& rig, Results& results, const Options& options) {
  for (const WeightFormat format : all_formats) test_format(rig, results, format, options.quick);
  if (!options.quick) {
    Rig fixed(true);
    for (const WeightFormat format : all_formats) test_invariance(fixed, results, format);
  }
  for (const WeightFormat format : all_formats) test_parts(rig, results, format, 1024);
  if (!options.quick) {
    for (const std::int64_t columns : {3072, 6144}) test_parts(rig, results, WeightFormat::bf16, columns);
    for (const WeightFormat format : {WeightFormat::mxfp8, WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      test_parts(rig, results, format, 6144);
    }
  }
  for (const WeightFormat format : {WeightFormat::mxfp8, WeightFormat::mxfp4}) {
    test_scales(rig, results, format);
    test_end_scales(rig, results, format);
  }
  test_mixed(rig, results);
  test_quantised(rig, results);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::mxfp8, WeightFormat::f32}) {
    test_logits(rig, results, format, 384);
  }
  if (!options.quick) {
    test_logits(rig, results, WeightFormat::bf16, 6144);
    test_logits(rig, results, WeightFormat::mxfp8, 6144);
  }
}

}  // namespace m3::test::gpu
