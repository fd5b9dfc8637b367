// patch_embed, vision_rotary_table, layer_norm, linear_bias, vision_qkv_finish, attend_segments and gelu_mlp.
#include <algorithm>
#include <cmath>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

constexpr std::int64_t head_size = ops::vision_head_dim;
constexpr std::int64_t angles = 2 * ops::vision_rotary_pairs;

ops::Limits limits_for(std::int64_t rows, std::int64_t columns, std::int64_t inner, std::int64_t segment) {
  return {.vision_rows = rows, .vision_columns = columns, .vision_inner = inner, .vision_segment = segment};
}

// As in linear_cases.cpp: fp32 sums in two orders, where terms cancel.
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

std::string times(std::int64_t a, std::int64_t b) { return std::to_string(a) + " × " + std::to_string(b); }

void test_patch_embed(Rig& rig, Results& results, bool quick) {
  struct Shape {
    std::int64_t patches, width, columns;
  };
  Random random(1);
  std::vector<Shape> shapes = {{1, 53, 1176}, {65, 130, 588}, {70, 66, 33}};
  if (!quick) shapes.insert(shapes.end(), {{300, 1280, 1176}, {64, 64, 1}, {129, 160, 1175}});
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::f16}) {
    for (const Shape& shape : shapes) {
      for (const bool exact : {true, false}) {
        const Weight weight(random, format, shape.width, shape.columns, exact);
        const std::int64_t count = shape.patches * shape.columns;
        const std::vector<float> pixels = exact ? integer_values(random, count, 3) : fp32_values(random, count);
        const ops::Limits limits = limits_for(shape.patches, shape.columns, 1, 0);
        Matrix x(DType::f32, shape.patches, shape.columns, pixels), out(DType::f32, shape.patches, shape.width);
        judge(limits).patch_embed(x.view(), weight.view, out.view());
        rig.bind(limits);
        for (const int padding : {8, 5}) {
          DeviceMatrix input(rig, DType::f32, shape.patches, shape.columns, pixels, padding);
          DeviceMatrix embedded(rig, DType::bf16, shape.patches, shape.width, padding);
          rig->patch_embed(input.view(), rig.place(weight.view), embedded.view());
          const std::vector<float> actual = embedded.values();
          results.add(
              "patch_embed", std::string(weight_format_name(format)),
              exact ? (actual == out.values() ? 0 : 2) : bf16_error(actual, out.values(), sum_tolerance(weight.view)),
              "2 steps of bf16 + 2^-18·√K·|w|",
              times(shape.patches, shape.columns) + ", padding " + std::to_string(padding));
          results.add_exact("patch_embed", "padding", embedded.padding_intact(), times(shape.patches, shape.width));
        }
        rig.clear(results, "patch_embed");
      }
    }
  }
}

void test_rotary(Rig& rig, Results& results) {
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 0; i < 150; ++i) {
    for (const std::int32_t position : {i % 4, i, 255 - i}) positions.push_back(position);
  }
  std::vector<float> inv_freq(13);
  ops::plain_inverse_frequencies(10000, inv_freq);
  const ops::Limits limits = limits_for(8, 8, 1, 150);  // a segment may be longer than a call of the other operations
  Matrix expected(DType::f32, 150, angles);
  judge(limits).vision_rotary_table(positions, inv_freq, expected.view());
  rig.bind(limits);
  DeviceMatrix table(rig, DType::f32, 150, angles);
  rig->vision_rotary_table(positions, inv_freq, table.view());
  results.add("vision_rotary", "f32", absolute_error(table.values(), expected.values(), 0x1p-22),
              "2^-22, two last places", "150 patches");
  results.add_exact("vision_rotary", "padding", table.padding_intact(), "150 patches");
  rig.clear(results, "vision_rotary");
}

void test_layer_norm(Rig& rig, Results& results) {
  Random random(2);
  for (const std::int64_t columns : {1, 24, 160, 777, 1280}) {
    for (const std::int64_t rows : {1, 37}) {
      for (const int kind : {0, 1, 2}) {  // both, norm only, sum only
        std::vector<float> x = normal_values(random, rows * columns);
        for (float& value : x) value = round_to_bf16(value + 3);                           // a mean to take out
        if (rows > 1 && columns > 1) x[static_cast<std::size_t>(columns) + 1] = INFINITY;  // its row stays broken
        const std::vector<float> d = normal_values(random, rows * columns);
        const std::vector<float> weight = fp32_values(random, columns), bias = fp32_values(random, columns);
        const ops::Limits limits = limits_for(rows, columns, 1, 0);
        Matrix residual(DType::f32, rows, columns, x), delta(DType::f32, rows, columns, d);
        Matrix normed(DType::f32, rows, columns);
        const bool with_delta = kind != 1, with_norm = kind != 2;
        judge(limits).layer_norm(residual.view(), with_delta ? delta.view() : ops::Tensor{}, {weight, bias, 1e-5f},
                                 with_norm ? normed.view() : ops::Tensor{});
        rig.bind(limits);
        for (const int padding : {8, 3}) {
          DeviceMatrix residual2(rig, DType::bf16, rows, columns, x, padding);
          DeviceMatrix delta2(rig, DType::bf16, rows, columns, d, padding);
          DeviceMatrix normed2(rig, DType::bf16, rows, columns, padding);
          rig->layer_norm(residual2.view(), with_delta ? delta2.view() : ops::Tensor{},
                          {rig.floats(weight), rig.floats(bias), 1e-5f}, with_norm ? normed2.view() : ops::Tensor{});
          const std::string what = times(rows, columns) + ", padding " + std::to_string(padding);
          results.add_exact("layer_norm", "sum", residual2.values() == residual.values(), what);
          if (with_norm) {
            results.add("layer_norm", "norm", bf16_error(normed2.values(), normed.values(), 0x1p-16),
                        "2 steps of bf16 + 2^-16", what);
          }
          results.add_exact("layer_norm", "padding", residual2.padding_intact() && normed2.padding_intact(), what);
        }
        rig.clear(results, "layer_norm");
      }
    }
  }
}

void test_linear_bias(Rig& rig, Results& results, bool quick) {
  Random random(3);
  std::vector<std::int64_t> counts = {1, 9, 140};
  if (!quick) counts.push_back(700);
  for (const std::int64_t tokens : counts) {
    for (const std::int64_t columns : {160, 320}) {
      for (const WeightFormat second : {WeightFormat::bf16, WeightFormat::f32}) {
        for (const bool exact : {true, false}) {
          const Weight a(random, WeightFormat::bf16, 37, columns, exact), b(random, second, 150, columns, exact);
          const std::vector<WeightMatrix> weights = {a.view, b.view};
          const std::vector<float> x =
              exact ? integer_values(random, tokens * columns, 3) : normal_values(random, tokens * columns);
          std::vector<float> bias = exact ? integer_values(random, 187, 40) : fp32_values(random, 187);
          if (exact) {
            for (float& value : bias) value += 0.25f;
          }
          const ops::Limits limits = limits_for(tokens, columns, 1, 0);
          Matrix input(DType::f32, tokens, columns, x), out(DType::f32, tokens, 187);
          judge(limits).linear_bias(input.view(), weights, bias, out.view());
          rig.bind(limits);
          DeviceMatrix input2(rig, DType::bf16, tokens, columns, x), out2(rig, DType::bf16, tokens, 187);
          const std::vector<WeightMatrix> placed = {rig.place(a.view), rig.place(b.view)};
          rig->linear_bias(input2.view(), placed, rig.floats(bias), out2.view());
          const double absolute = std::max(sum_tolerance(a.view), sum_tolerance(b.view));
          const std::vector<float> actual = out2.values();
          results.add("linear_bias", std::string(weight_format_name(second)),
                      exact ? (actual == out.values() ? 0 : 2) : bf16_error(actual, out.values(), absolute),
                      "2 steps of bf16 + 2^-18·√K·|w|", times(tokens, columns));
          results.add_exact("linear_bias", "padding", out2.padding_intact(), times(tokens, columns));
          rig.clear(results, "linear_bias");
        }
      }
    }
  }
}

void test_qkv(Rig& rig, Results& results) {
  Random random(4);
  for (const int heads : {1, 2, 3, 16, 17}) {
    const std::int64_t rows = 9, width = heads * head_size;
    const std::vector<float> packed = normal_values(random, rows * 3 * width);
    const std::vector<float> table = fp32_values(random, rows * angles);
    Matrix x(DType::f32, rows, 3 * width, packed), turned(DType::f32, rows, angles, table);
    const ops::Limits limits = limits_for(rows, 3 * width, 1, rows);
    judge(limits).vision_qkv_finish({.heads = heads}, x.view(), turned.view());
    rig.bind(limits);
    DeviceMatrix x2(rig, DType::bf16, rows, 3 * width, packed), turned2(rig, DType::f32, rows, angles, table, 3);
    rig->vision_qkv_finish({.heads = heads}, x2.view(), turned2.view());
    const std::vector<float> actual = x2.values(), expected = x.values();
    const std::string what = std::to_string(heads) + " heads";
    results.add("vision_qkv", "rotation", bf16_error(actual, expected, 0x1p-20), "2 steps of bf16 + 2^-20", what);
    bool rest = x2.padding_intact();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < 3 * width; ++i) {
        const auto at = static_cast<std::size_t>(row * 3 * width + i);
        if (i >= 2 * width || i % head_size >= 78) rest = rest && actual[at] == packed[at];
      }
    }
    results.add_exact("vision_qkv", "the rest", rest, what);
    rig.clear(results, "vision_qkv");
  }
}

std::vector<float> attend(Rig& rig, const ops::Tensor& packed, const std::vector<std::int32_t>& begin, int heads,
                          std::int64_t block, bool& intact) {
  const std::int64_t rows = begin.back();
  DeviceMatrix out(rig, DType::bf16, rows, heads * head_size);
  const ops::VisionHeads args{.heads = heads, .scale = 1 / std::sqrt(80.0f)};
  for (std::int64_t first = 0; first < rows; first += block) {
    ops::Tensor part = out.view();
    part.data = part.row(first);
    part.rows = std::min(block, rows - first);
    rig->attend_segments(args, packed, begin, first, part);
  }
  intact = intact && out.padding_intact();
  return out.values();
}

void test_attend(Rig& rig, Results& results, bool quick) {
  struct Case {
    std::vector<std::int32_t> begin;
    int heads;
    float scale;
  };
  std::vector<std::int32_t> many = {0};  // more runs than one launch takes
  for (std::int32_t i = 1; i <= 70; ++i) many.push_back(3 * i);
  std::vector<Case> cases = {{{0, 1}, 1, 1},
                             {{0, 4}, 2, 1},
                             {{0, 1, 3, 7, 67}, 3, 1},
                             {{0, 129, 130, 300}, 1, 1},
                             {{0, 61, 62, 63}, 2, 1},
                             {{0, 33, 321}, 1, 1},
                             {many, 1, 1},
                             {{0, 90}, 1, 60},
                             {{0, 200}, 2, 0x1p30f}};
  if (!quick) cases.insert(cases.end(), {{{0, 1000, 1003, 2500}, 16, 1}, {{0, 4096}, 4, 1}, {{0, 577, 1154}, 16, 20}});
  Random random(5);
  for (const Case& shape : cases) {
    const std::int64_t rows = shape.begin.back(), width = shape.heads * head_size;
    const std::vector<float> packed = normal_values(random, rows * 3 * width, shape.scale);
    std::int64_t longest = 0;
    for (std::size_t s = 0; s + 1 < shape.begin.size(); ++s)
      longest = std::max<std::int64_t>(longest, shape.begin[s + 1] - shape.begin[s]);
    const ops::Limits limits = limits_for(rows, width, 1, longest);
    Matrix x(DType::f32, rows, 3 * width, packed), out(DType::f32, rows, width);
    judge(limits).attend_segments({.heads = shape.heads, .scale = 1 / std::sqrt(80.0f)}, x.view(), shape.begin, 0,
                                  out.view());
    rig.bind(limits);
    DeviceMatrix x2(rig, DType::bf16, rows, 3 * width, packed);
    bool intact = true;
    const std::vector<float> whole = attend(rig, x2.view(), shape.begin, shape.heads, rows, intact);
    const double tolerance = shape.scale == 1 ? 0x1p-8 : 1e-2;
    const std::string what = std::to_string(shape.begin.size() - 1) + " segments, " + times(rows, shape.heads);
    // Weights of the softmax are rounded to bf16, independently, and so is the result; large scores come close to a choice
    // of one key, where scores' own last places count.
    results.add("attend_segm", shape.scale == 1 ? "bf16" : "large scores", norm_error(whole, out.values(), tolerance),
                shape.scale == 1 ? "norm 2^-8" : "norm 1e-2", what);
    for (const std::int64_t block : {1, 7, 128, 200}) {
      if (block >= rows || rows / block > 300) continue;
      const std::vector<float> cut = attend(rig, x2.view(), shape.begin, shape.heads, block, intact);
      const std::string how = what + ", blocks of " + std::to_string(block);
      if (rig.deterministic()) {
        results.add_exact("attend_segm", "blocks", cut == whole, how);
      } else {
        results.add("attend_segm", "blocks", norm_error(cut, out.values(), tolerance), "as whole", how);
      }
    }
    results.add_exact("attend_segm", "padding", intact, what);
    rig.clear(results, "attend_segm");
  }
}

// What one segment's rows of V hold, its neighbours do not meet, whichever share tiles and blocks of threads with it.
void test_attend_apart(Rig& rig, Results& results) {
  Random random(7);
  const int heads = 2;
  const std::int64_t width = heads * head_size;
  const auto size = static_cast<std::size_t>(width);
  for (const std::vector<std::int32_t>& begin :
       {std::vector<std::int32_t>{0, 5, 12}, {0, 130, 300, 301, 333, 700}, {0, 192, 384, 512}}) {
    const std::int64_t rows = begin.back();
    const std::vector<float> packed = normal_values(random, rows * 3 * width);
    rig.bind(limits_for(rows, width, 1, rows));
    bool intact = true;
    DeviceMatrix clean(rig, DType::bf16, rows, 3 * width, packed);
    for (const std::int64_t block : {rows, std::int64_t{100}}) {
      const std::vector<float> expected = attend(rig, clean.view(), begin, heads, block, intact);
      for (std::size_t s = 0; s + 1 < begin.size(); ++s) {
        std::vector<float> broken = packed;
        for (std::int32_t row = begin[s]; row < begin[s + 1]; ++row) {
          std::fill_n(broken.begin() + (3 * row + 2) * width, width, INFINITY);
        }
        DeviceMatrix x(rig, DType::bf16, rows, 3 * width, broken);
        const std::vector<float> actual = attend(rig, x.view(), begin, heads, block, intact);
        bool same = true, met = true;
        for (std::size_t at = 0; at < actual.size(); ++at) {
          const auto row = static_cast<std::int32_t>(at / size);
          const bool own = row >= begin[s] && row < begin[s + 1];
          same = same && (own || actual[at] == expected[at]);
          met = met && (!own || !std::isfinite(actual[at]));
        }
        const std::string what = "segment " + std::to_string(s) + " of " + std::to_string(begin.size() - 1) + ", " +
                                 times(rows, heads) + ", blocks of " + std::to_string(block);
        results.add_exact("attend_segm", "infinite: others", same, what);
        results.add_exact("attend_segm", "infinite: own", met, what);
      }
    }
    results.add_exact("attend_segm", "padding", intact, times(rows, heads));
    rig.clear(results, "attend_segm");
  }
}

std::vector<float> run_gelu(Rig& rig, const std::vector<float>& x, std::int64_t rows, const Weight& fc1,
                            const Weight& fc2, const std::vector<float>& bias1, const std::vector<float>& bias2,
                            Results& results) {
  DeviceMatrix input(rig, DType::bf16, rows, fc1.view.columns, x), out(rig, DType::bf16, rows, fc2.view.rows);
  rig->gelu_mlp(input.view(), {rig.place(fc1.view), rig.floats(bias1), rig.place(fc2.view), rig.floats(bias2)},
                out.view());
  results.add_exact("gelu_mlp", "padding", out.padding_intact(), times(rows, fc2.view.rows));
  return out.values();
}

void test_gelu(Rig& rig, Results& results, bool quick) {
  Random random(6);
  {  // fc1 = fc2 = identity without bias: the activation itself, over its whole range
    const std::int64_t count = 128, rows = 9;
    Weight identity(random, WeightFormat::bf16, count, count, true);
    auto* halves = reinterpret_cast<bf16*>(identity.values.data());
    for (std::int64_t i = 0; i < count * count; ++i) halves[i] = to_bf16(i % (count + 1) == 0 ? 1.0f : 0.0f);
    const std::vector<float> none(static_cast<std::size_t>(count));
    std::vector<float> x, expected;
    for (int i = 0; i < rows * count; ++i) {
      x.push_back(round_to_bf16(-14.0f + 28.0f * static_cast<float>(i) / static_cast<float>(rows * count)));
      expected.push_back(static_cast<float>(double{x.back()} * 0.5 * std::erfc(-double{x.back()} / std::sqrt(2.0))));
    }
    rig.bind(limits_for(rows, count, count, 0));
    results.add("gelu_mlp", "gelu alone",
                bf16_error(run_gelu(rig, x, rows, identity, identity, none, none, results), expected, 1e-37),
                "2 steps of bf16", "-14 ... 14");
    rig.clear(results, "gelu_mlp");
  }
  struct Shape {
    std::int64_t rows, columns, inner, out;
  };
  std::vector<Shape> shapes = {{1, 160, 64, 160}, {3, 33, 100, 7}, {135, 130, 257, 70}, {140, 192, 320, 64}};
  if (!quick) shapes.insert(shapes.end(), {{300, 1280, 5120, 1280}, {100, 1280, 768, 512}});
  for (const Shape& shape : shapes) {
    const Weight fc1(random, WeightFormat::bf16, shape.inner, shape.columns, false);
    const Weight fc2(random, WeightFormat::bf16, shape.out, shape.inner, false);
    const std::vector<float> bias1 = fp32_values(random, shape.inner), bias2 = fp32_values(random, shape.out);
    const std::vector<float> x = normal_values(random, shape.rows * shape.columns);
    const ops::Limits limits = limits_for(shape.rows, std::max(shape.columns, shape.inner), shape.inner, 0);
    Matrix input(DType::f32, shape.rows, shape.columns, x), out(DType::f32, shape.rows, shape.out);
    judge(limits).gelu_mlp(input.view(), {fc1.view, bias1, fc2.view, bias2}, out.view());
    rig.bind(limits);
    results.add("gelu_mlp", "bf16",
                norm_error(run_gelu(rig, x, shape.rows, fc1, fc2, bias1, bias2, results), out.values(), 0x1p-8),
                "norm 2^-8", times(shape.rows, shape.columns) + " × " + times(shape.inner, shape.out));
    rig.clear(results, "gelu_mlp");
  }
}

// Pixels go and features come back in one large copy.
void test_copies(Rig& rig, Results& results) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{1} << 20, (std::size_t{8} << 20) + 13,
                                 std::size_t{16} << 20, (std::size_t{20} << 20) + 7}) {
    std::vector<std::byte> sent(size);
    for (std::size_t i = 0; i < size; ++i) sent[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    std::byte* at = rig.place(sent);
    results.add_exact("copies", "there and back", rig.download(at, size) == sent, std::to_string(size) + " bytes");
    rig.clear(results, "copies");
  }
}

}  // namespace

void test_vision(Rig& rig, Results& results, const Options& options) {
  test_copies(rig, results);
  test_patch_embed(rig, results, options.quick);
  test_rotary(rig, results);
  test_layer_norm(rig, results);
  test_linear_bias(rig, results, options.quick);
  test_qkv(rig, results);
  test_attend(rig, results, options.quick);
  test_attend_apart(rig, results);
  test_gelu(rig, results, options.quick);
}

}  // namespace m3::test::gpu
