// Numbers at the ends of their types, against the judge: what it has finite must be finite here too. And experts and MLPs
// whose activations are rounded to fp8 (ptpc_fp8).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

// Rows of one size each, from denormal numbers to squares that overflow, and such as hold one large number.
void test_add_norm(Rig& rig, Results& results) {
  const std::vector<float> sizes = {0, 0x1p-133f, 0x1p-128f, 0x1p-70f, 0x1p-20f,
                                    1, 0x1p30f,   0x1p50f,   0x1p70f,  0x1p120f};
  for (const std::int64_t columns : {777, 6144}) {
    Random random(3);
    const auto rows = static_cast<std::int64_t>(sizes.size()) * 2;
    std::vector<float> x = normal_values(random, rows * columns), d = normal_values(random, rows * columns);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float size = sizes[static_cast<std::size_t>(row / 2)];
      for (std::int64_t column = 0; column < columns; ++column) {
        const auto at = static_cast<std::size_t>(row * columns + column);
        const bool large = row % 2 == 0 || column == 100;
        x[at] = round_to_bf16(x[at] * (large ? size : 1e-3f));
        d[at] = round_to_bf16(d[at] * (large ? size : 1e-3f));
      }
    }
    const std::vector<float> weight = fp32_values(random, columns, 0.3f);
    ops::Limits limits;
    limits.tokens = limits.sequences = rows;
    limits.hidden = columns;
    ops::NormWeight norm{weight, 1e-6f, true};
    Matrix residual(DType::f32, rows, columns, x), delta(DType::f32, rows, columns, d),
        normed(DType::f32, rows, columns);
    judge(limits).add_norm(residual.view(), delta.view(), norm, normed.view(), nullptr);
    rig.bind(limits);
    for (const int padding : {8, 5}) {
      DeviceMatrix residual2(rig, DType::bf16, rows, columns, x, padding), delta2(rig, DType::bf16, rows, columns, d);
      DeviceMatrix normed2(rig, DType::bf16, rows, columns);
      norm.weight = rig.floats(weight);
      rig->add_norm(residual2.view(), delta2.view(), norm, normed2.view(), nullptr);
      const std::string what = fmt::format("{} columns, padding {}", columns, padding);
      results.add_exact("add_norm", "extreme sum", residual2.values() == residual.values(), what);
      const std::vector<float> ours = normed2.values(), wanted = normed.values();
      // One step of a denormal number.
      results.add("add_norm", "extreme norm", bf16_error(ours, wanted, 0x1p-133), "2 steps of bf16", what);
      std::size_t broken = 0;
      for (std::size_t i = 0; i < ours.size(); ++i)
        broken += std::isfinite(ours[i]) != std::isfinite(wanted[i]) ? 1 : 0;
      results.add_exact("add_norm", "finite", broken == 0, what);
    }
    rig.clear(results, "add_norm");
  }
}

// Logits as they are meant: the first column alone has weights.
void test_route(Rig& rig, Results& results, WeightFormat format, std::int64_t tokens, bool biased) {
  constexpr int experts = 128, k = 4;
  constexpr std::int64_t columns = 6144;
  const std::vector<float> sizes = {0, 1e5f, -1e5f, 1, -1, 0x1p-100f, 3};
  Random random(4);
  std::vector<bf16> halves(experts * columns);
  std::vector<float> wide(halves.size());
  for (int e = 0; e < experts; ++e) {
    const auto at = static_cast<std::size_t>(e * columns);
    wide[at] = static_cast<float>((e * 37 + 11) % experts - 60);
    if (e % 16 == 3) wide[at] = 0;
    wide[at + 1] = -80;             // equal and next to nothing
    wide[at + 2] = e < 2 ? 1 : -1;  // fewer than k are not zero
    for (std::size_t column = 0; column < 3; ++column) halves[at + column] = to_bf16(wide[at + column]);
  }
  WeightMatrix view;
  view.format = format;
  view.rows = experts;
  view.columns = columns;
  view.values = format == WeightFormat::f32 ? reinterpret_cast<const std::byte*>(wide.data())
                                            : reinterpret_cast<const std::byte*>(halves.data());
  std::vector<float> x(static_cast<std::size_t>(tokens * columns));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<std::size_t>(t * columns);
    if (t % 9 < 7) x[at] = round_to_bf16(sizes[static_cast<std::size_t>(t % 9)]);
    if (t % 9 == 7) x[at + 1] = 1;
    if (t % 9 == 8) x[at + 2] = 1e4f;
  }
  for (float& value : x) value = round_to_bf16(value);
  std::vector<float> bias;
  if (biased) bias = fp32_values(random, experts, 0.1f);
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.hidden = columns;
  limits.experts = experts;
  limits.experts_per_token = k;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * k));
  std::vector<float> weights(ids.size());
  Matrix hidden(DType::f32, tokens, columns, x);
  judge(limits).route(hidden.view(), view, bias, {k, ids.data(), weights.data()});
  rig.bind(limits);
  DeviceMatrix hidden2(rig, DType::bf16, tokens, columns, x);
  auto* ids2 = reinterpret_cast<std::int32_t*>(rig.reserve(ids.size() * 4));
  auto* weights2 = reinterpret_cast<float*>(rig.reserve(ids.size() * 4));
  rig->route(hidden2.view(), rig.place(view), biased ? rig.floats(bias) : std::span<const float>{},
             {k, ids2, weights2});
  const std::string what = fmt::format("{}, {} tokens{}", weight_format_name(format), tokens, biased ? ", biased" : "");
  const std::vector<std::int32_t> actual = rig.download(ids2, ids.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) wrong += ids[i] != actual[i] ? 1 : 0;
  results.add_exact("route", "extreme ids", wrong == 0, fmt::format("{}: {} differ", what, wrong));
  const std::vector<float> actual_weights = rig.download(weights2, ids.size());
  results.add("route", "extreme", absolute_error(actual_weights, weights, 4e-6), "4e-6", what);
  rig.clear(results, "route");
}

struct Heads {
  int query, kv;
};

struct Content {
  const char* name;
  float q, k, v;         // sizes
  bool equal_scores;     // q is 1 and k one number
  float outlier = 1;     // one dimension of the values is so many times larger
  float odd_blocks = 1;  // values of every other block of keys likewise
};
constexpr std::size_t outlier_dimension = 5;

// `prompt`: many tokens of one sequence, else single ones and a group.
void test_attention(Rig& rig, Results& results, DType cache, const Heads& heads, const Content& content, bool sparse,
                    bool prompt) {
  constexpr std::int32_t pool = 60;
  constexpr int topk = 16;
  // Of huge scores the highest takes all: with this seed the two highest of any row differ by 3e-5 of themselves at least,
  // which no order of summation turns round.
  Random random(38);
  const std::vector<SequenceShape> shapes = prompt ? std::vector<SequenceShape>{{500, 90}, {130, 3}}
                                                   : std::vector<SequenceShape>{{1, 1}, {2305, 1}, {700, 4}};
  const RaggedBatch batch(shapes, pool, 5);
  const std::int64_t columns = std::int64_t{heads.query} * 128;
  std::vector<float> q = normal_values(random, batch.tokens() * columns);
  for (float& value : q) value = content.equal_scores ? 1 : value * content.q;
  PageMemory k(cache, pool, heads.kv), v(cache, pool, heads.kv);
  ops::LayerPages pages;
  pages.k = k.part(), pages.v = v.part();
  // fp8 pages hold codes of ordinary size, and the scales the rest.
  if (cache == DType::f8_e4m3) pages.k_scale = std::abs(content.k), pages.v_scale = content.v > 0 ? content.v : 1;
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    for (std::int32_t position = 0; position < batch.context_lengths[s]; ++position) {
      const std::int32_t page =
          batch.page_table[s * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(position / 128)];
      for (int head = 0; head < heads.kv; ++head) {
        std::vector<float> key = normal_values(random, 128), value = normal_values(random, 128);
        for (float& each : key) each = content.equal_scores ? content.k : each * content.k;
        for (float& each : value) each *= content.v;
        if (cache == DType::bf16) {
          value[outlier_dimension] *= content.outlier;
          if (position / 128 % 2 == 1) {
            for (float& each : value) each *= content.odd_blocks;
          }
        }
        k.write(page, head, position % 128, key, pages.k_scale);
        v.write(page, head, position % 128, value, pages.v_scale);
      }
    }
  }
  std::vector<std::int32_t> ids;
  for (const std::int32_t position : batch.positions) {
    for (int i = 0; i < heads.kv * topk; ++i) {
      const int own = position / 128, first = std::max(0, own - topk + 1), block = first + i % topk;
      ids.push_back(block <= own ? block : -1);
    }
  }
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = std::ssize(shapes);
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = heads.query;
  limits.kv_heads = heads.kv;
  limits.hidden = 128;
  limits.topk_blocks = topk;
  const ops::Attention args{heads.query, heads.kv, 0.08838834764831845f, 0, topk};
  Matrix input(DType::f32, batch.tokens(), columns, q), expected(DType::f32, batch.tokens(), columns);
  if (sparse) {
    judge(limits).attend_sparse(batch.view(), args, input.view(), pages, ids.data(), expected.view());
  } else {
    judge(limits).attend_dense(batch.view(), args, input.view(), pages, expected.view());
  }
  rig.bind(limits);
  ops::LayerPages placed = pages;
  placed.k.data = rig.place(k.bytes()), placed.v.data = rig.place(v.bytes());
  DeviceMatrix input2(rig, DType::bf16, batch.tokens(), columns, q), out(rig, DType::bf16, batch.tokens(), columns);
  const ops::Batch view = rig.place(batch);
  if (sparse) {
    rig->attend_sparse(view, args, input2.view(), placed, rig.place(ids), out.view());
  } else {
    rig->attend_dense(view, args, input2.view(), placed, out.view());
  }
  const std::string operation = sparse ? "attend_sparse" : "attend_dense";
  const std::string what =
      fmt::format("{}, {}/{}, {}{}", content.name, heads.query, heads.kv, dtype_name(cache), prompt ? ", prompt" : "");
  std::vector<float> ours = out.values(), wanted = expected.values();
  if (cache == DType::bf16) {  // dimensions weigh the same
    for (std::size_t i = outlier_dimension; i < wanted.size(); i += 128)
      ours[i] /= content.outlier, wanted[i] /= content.outlier;
  }
  const auto finite = [](float value) { return std::isfinite(value); };
  results.add_exact(operation, "judge finite", std::all_of(wanted.begin(), wanted.end(), finite), what);
  results.add_exact(operation, "finite", std::all_of(ours.begin(), ours.end(), finite), what);
  results.add(operation, "extreme", bf16_error(ours, wanted, 0x1p-8 * content.v), "2 steps of bf16 + 2^-8 (P in bf16)",
              what);
  results.add(operation, "extreme norm", norm_error(ours, wanted, 5e-3), "5e-3 of the norm", what);
  rig.clear(results, operation);
}

// Products near the end of fp32 (of e4m3: at the end of its range), and bf16 keys that are no numbers, alone and by whole
// blocks.
void test_select(Rig& rig, Results& results, DType cache, bool decode) {
  constexpr std::int32_t pool = 70;
  constexpr int heads = 4, topk = 16;
  Random random(13);
  const std::vector<SequenceShape> shapes =
      decode ? std::vector<SequenceShape>{{4000, 1}, {2500, 2}} : std::vector<SequenceShape>{{4000, 60}, {2500, 30}};
  const RaggedBatch batch(shapes, pool, 9);
  PageMemory keys(cache, pool, 1);
  const float size = cache == DType::bf16 ? 0x1p55f : 224;
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    for (std::int32_t position = 0; position < batch.context_lengths[s]; ++position) {
      const std::int32_t page =
          batch.page_table[s * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(position / 128)];
      std::vector<float> key = integer_values(random, 128, 2);
      for (float& value : key) value *= size;
      const bool broken = random() % 30 == 0 || position / 128 % 5 == 2;
      if (broken && cache == DType::bf16) key[random() % 128] = NAN;
      keys.write(page, 0, position % 128, key);
    }
  }
  std::vector<float> q = integer_values(random, std::int64_t{batch.tokens()} * heads * 128, 2);
  for (float& value : q) value *= size;
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = std::ssize(shapes);
  limits.context = std::int64_t{batch.stride} * 128;
  limits.kv_heads = heads;
  limits.topk_blocks = topk;
  ops::SelectBlocks select;
  select.index_heads = heads;
  select.topk = topk;
  ops::LayerPages pages;
  pages.index_k = keys.part();
  const auto count = static_cast<std::size_t>(batch.tokens()) * heads * topk;
  std::vector<std::int32_t> expected(count, 77);
  Matrix input(DType::f32, batch.tokens(), heads * 128, q);
  judge(limits).select_blocks(batch.view(), select, input.view(), pages, expected.data());
  rig.bind(limits);
  pages.index_k.data = rig.place(keys.bytes());
  DeviceMatrix input2(rig, DType::bf16, batch.tokens(), heads * 128, q);
  auto* ids = reinterpret_cast<std::int32_t*>(rig.reserve(count * 4));
  rig->select_blocks(rig.place(batch), select, input2.view(), pages, ids);
  const std::vector<std::int32_t> actual = rig.download(ids, count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += actual[i] != expected[i] ? 1 : 0;
  results.add_exact(
      "select_blocks", "extreme keys", wrong == 0,
      fmt::format("{}{}: {} of {} ids differ", dtype_name(cache), decode ? ", decode" : "", wrong, count));
  rig.clear(results, "select_blocks");
}

// e4m3 activations: a step of bf16 in gate or up, which the order of a sum makes, may move a code of down's input by a
// sixteenth of itself, in some hundredth of them.
constexpr double quantised_tolerance = 1.2e-2;

void test_quantised(Rig& rig, Results& results, std::int64_t tokens, std::int64_t hidden, std::int64_t width) {
  constexpr int count = 6, k = 3;
  Random random(6);
  std::deque<Weight> weights;
  std::vector<ops::MlpWeights> experts, placed;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) -> WeightMatrix {
    Weight& weight = weights.emplace_back(random, WeightFormat::fp8, rows, columns, false);
    weight.view.quantized_activations = true;
    std::vector<float> row(static_cast<std::size_t>(columns));
    widen_row(weight.view, 0, row.data());
    double squares = 0;
    for (const float value : row) squares += double{value} * value;
    for (float& scale : weight.row_scales) scale *= static_cast<float>(1 / std::sqrt(squares));
    return weight.view;
  };
  for (int e = 0; e <= count; ++e)
    experts.push_back({matrix(width, hidden), matrix(width, hidden), matrix(hidden, width)});
  std::vector<float> x = normal_values(random, tokens * hidden);
  std::fill(x.begin(), x.begin() + hidden, 0.0f);  // a row of zeros has a scale too
  std::vector<std::int32_t> ids;
  std::vector<float> choice_weights;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < k; ++i) {
      ids.push_back(static_cast<std::int32_t>((t % 3) + i));
      choice_weights.push_back(static_cast<float>(1 + random() % 7) / 16);
    }
  }
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.hidden = hidden;
  limits.intermediate = width;
  limits.experts = count;
  limits.experts_per_token = k;
  const std::span<const ops::MlpWeights> routed(experts.data(), count);
  Matrix input(DType::f32, tokens, hidden, x), expected(DType::f32, tokens, hidden),
      expected_mlp(DType::f32, tokens, hidden);
  judge(limits).experts(input.view(), {k, ids.data(), choice_weights.data()}, 0, routed, &experts.back(), 2.0f, {},
                        expected.view());
  judge(limits).mlp(input.view(), experts[0], {}, expected_mlp.view());
  rig.bind(limits);
  for (const ops::MlpWeights& expert : experts) placed.push_back(rig.place(expert));
  DeviceMatrix input2(rig, DType::bf16, tokens, hidden, x), out(rig, DType::bf16, tokens, hidden),
      out_mlp(rig, DType::bf16, tokens, hidden);
  rig->experts(input2.view(), {k, rig.place(ids), rig.place(choice_weights)}, 0, {placed.data(), count}, &placed.back(),
               2.0f, {}, out.view());
  rig->mlp(input2.view(), placed[0], {}, out_mlp.view());
  const std::string what = fmt::format("{} tokens, {} × {}", tokens, hidden, width);
  results.add("experts", "ptpc_fp8", norm_error(out.values(), expected.values(), quantised_tolerance),
              "1.2e-2 of the norm", what);
  results.add("mlp", "ptpc_fp8", norm_error(out_mlp.values(), expected_mlp.values(), quantised_tolerance),
              "1.2e-2 of the norm", what);
  // The first row is zero on both, exactly: nothing of the others' scales reaches it.
  const std::vector<float> rows = out.values();
  results.add_exact("experts", "ptpc_fp8 zeros",
                    std::all_of(rows.begin(), rows.begin() + hidden, [](float value) { return value == 0; }), what);
  rig.clear(results, "experts");
}

}  // namespace

void test_extremes(Rig& rig, Results& results, const Options& options) {
  test_add_norm(rig, results);
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16}) {
    for (const std::int64_t tokens : {1, 40, 300}) {
      if (options.quick && tokens > 40) continue;
      for (const bool biased : {false, true}) test_route(rig, results, format, tokens, biased);
    }
  }
  constexpr Content contents[] = {{"huge keys", 1, 0x1p60f, 1, false},
                                  {"huge values", 1, 1, 0x1p100f, false},
                                  {"huge values of equal keys", 1, 1, 0x1p100f, true},
                                  {"scores equal and far below 0", 1, -0x1p80f, 1, true},
                                  {"huge queries and keys", 0x1p50f, 0x1p50f, 0x1p60f, false},
                                  {"tiny", 0x1p-60f, 0x1p-60f, 0x1p-100f, false},
                                  {"zero values", 1, 1, 0, false},
                                  {"one dimension large", 1, 1, 1, false, 0x1p12f},
                                  {"values near the end of bf16", 1, 1, 0x1p110f, false},
                                  {"some blocks of zeros", 1, 1, 0x1p60f, false, 1, 0}};
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    for (const bool some : {true, false}) test_select(rig, results, cache, some);
    for (const bool sparse : {true, false}) {
      for (const Content& content : contents) {
        test_attention(rig, results, cache, {16, 1}, content, sparse, !options.quick);
        if (options.quick) continue;
        for (const bool prompt : {true, false}) test_attention(rig, results, cache, {64, 4}, content, sparse, prompt);
        test_attention(rig, results, cache, {8, 4}, content, sparse, false);
      }
    }
  }
  test_quantised(rig, results, 5, 128, 96);
  test_quantised(rig, results, 21, 320, 192);
  if (options.quick) return;
  for (const std::int64_t tokens : {1, 12, 64, 140, 600}) test_quantised(rig, results, tokens, 1024, 1024);
  test_quantised(rig, results, 9, 6144, 3072);
}

}  // namespace m3::test::gpu
