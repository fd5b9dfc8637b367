// embed, rotary_table and add_norm.
#include <cmath>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

ops::Limits limits_for(std::int64_t tokens, std::int64_t columns) {
  ops::Limits limits;
  limits.tokens = limits.sequences = limits.logits_rows = tokens;
  limits.hidden = columns;
  limits.vocab = 300;
  return limits;
}

void test_embed(Rig& rig, Results& results) {
  Random random(1);
  for (const WeightFormat format : all_formats) {
    for (const std::int64_t columns : {64, 320, 6144}) {
      RaggedBatch batch({{1, 1}, {0, 1}, {7, 5}, {300, 9}}, 8, 3);
      batch.token_ids = {0, 1, -1, -2, -3, 299, 300, 5, 6, 7, 298, -4, 2, 3, 4, 8};
      const std::vector<std::int32_t> previous = {17, -1, 250, 3};
      const Weight table(random, format, 300, columns, false);
      const ops::Limits limits = limits_for(batch.tokens(), columns);
      Matrix expected(DType::f32, batch.tokens(), columns);
      expected.fill(NAN);
      const std::vector<float> features = normal_values(random, 2 * columns);
      std::vector<std::int32_t> feature_rows(16, -1);
      feature_rows[9] = 1;
      feature_rows[12] = 0;
      ops::Batch view = batch.view();
      view.feature_rows = feature_rows.data();
      view.features = reinterpret_cast<const std::byte*>(features.data());
      judge(limits).embed(view, table.view, previous.data(), expected.view());
      rig.bind(limits);
      ops::Batch placed = rig.place(batch);
      placed.feature_rows = rig.place(feature_rows);
      std::vector<bf16> halves;
      for (const float value : features) halves.push_back(to_bf16(value));
      placed.features = reinterpret_cast<const std::byte*>(rig.place(halves));
      DeviceMatrix residual(rig, DType::bf16, batch.tokens(), columns);
      rig->embed(placed, rig.place(table.view), rig.place(previous), residual.view());
      const std::string what = std::to_string(columns) + " columns";
      results.add("embed", std::string(weight_format_name(format)), bf16_error(residual.values(), expected.values(), 0),
                  "2 steps of bf16", what);
      results.add_exact("embed", "padding", residual.padding_intact(), what);
      rig.clear(results, "embed");
    }
  }
}

void test_rotary(Rig& rig, Results& results) {
  RaggedBatch batch({{40, 40}, {1 << 20, 30}}, 8300, 0);
  for (const int half : {32, 64}) {
    std::vector<float> inv_freq(static_cast<std::size_t>(half));
    ops::plain_inverse_frequencies(5e6, inv_freq);
    const ops::Limits limits = limits_for(batch.tokens(), 64);
    Matrix expected(DType::f32, batch.tokens(), 2 * half);
    judge(limits).rotary_table(batch.view(), inv_freq, 1.25f, expected.view());
    rig.bind(limits);
    DeviceMatrix table(rig, DType::f32, batch.tokens(), 2 * half);
    rig->rotary_table(rig.place(batch), rig.floats(inv_freq), 1.25f, table.view());
    results.add("rotary_table", "f32", absolute_error(table.values(), expected.values(), 1.25 * 0x1p-22),
                "2^-22, two last places", std::to_string(half));
    rig.clear(results, "rotary_table");
  }
}

void test_add_norm(Rig& rig, Results& results) {
  Random random(2);
  for (const std::int64_t columns : {128, 320, 777, 6144, 12288, 16384}) {
    for (const std::int64_t rows : {1, 37}) {
      for (const int kind : {0, 1, 2, 3}) {  // both, norm only, sum only, plain norm
        const std::vector<float> x = normal_values(random, rows * columns, 3),
                                 d = normal_values(random, rows * columns);
        const std::vector<float> weight = fp32_values(random, columns, 0.3f);
        const ops::Limits limits = limits_for(rows, columns);
        Matrix residual(DType::f32, rows, columns, x), delta(DType::f32, rows, columns, d);
        Matrix normed(DType::f32, rows, columns);
        ops::NormWeight norm{weight, 1e-6f, kind != 3};
        const bool with_delta = kind != 1, with_norm = kind != 2;
        judge(limits).add_norm(residual.view(), with_delta ? delta.view() : ops::Tensor{}, norm,
                               with_norm ? normed.view() : ops::Tensor{}, nullptr);
        rig.bind(limits);
        DeviceMatrix residual2(rig, DType::bf16, rows, columns, x), delta2(rig, DType::bf16, rows, columns, d, 5);
        DeviceMatrix normed2(rig, DType::bf16, rows, columns, 1);
        norm.weight = rig.floats(weight);
        rig->add_norm(residual2.view(), with_delta ? delta2.view() : ops::Tensor{}, norm,
                      with_norm ? normed2.view() : ops::Tensor{}, nullptr);
        const std::string what = std::to_string(rows) + " × " + std::to_string(columns);
        results.add_exact("add_norm", "sum", residual2.values() == residual.values(), what);
        if (with_norm) {
          results.add("add_norm", "norm", bf16_error(normed2.values(), normed.values(), 0), "2 steps of bf16", what);
        }
        rig.clear(results, "add_norm");
      }
    }
  }
}

}  // namespace

void test_rows(Rig& rig, Results& results, const Options&) {
  test_embed(rig, results);
  test_rotary(rig, results);
  test_add_norm(rig, results);
}

}  // namespace m3::test::gpu
