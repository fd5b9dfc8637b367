// What the backend refuses while a model loads, and that the kernels do take the most that it allows.
#include "src/ops/cuda/limits.h"

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

ops::Limits model_limits() {
  ops::Limits limits;
  limits.tokens = 64;
  limits.sequences = limits.logits_rows = 4;
  limits.context = 4096;
  limits.hidden = 64;
  limits.query_heads = 4;
  limits.kv_heads = 2;
  limits.intermediate = 64;
  limits.experts = 8;
  limits.experts_per_token = 2;
  limits.topk_blocks = 16;
  limits.vocab = 320;
  return limits;
}

// The largest value of a size that is not refused.
std::int64_t most_of(Rig& rig, std::int64_t ops::Limits::*size) {
  std::int64_t taken = 1, refused = std::int64_t{1} << 40;
  while (refused - taken > 1) {
    ops::Limits limits = model_limits();
    limits.*size = (taken + refused) / 2;
    (rig->refusal(limits).empty() ? taken : refused) = limits.*size;
  }
  return taken;
}

void test_refusals(Rig& rig, Results& results) {
  struct Size {
    const char* name;
    std::int64_t ops::Limits::*size;
    std::int64_t most;  // 0: the device's
  };
  const Size sizes[] = {{"sparse_topk_blocks", &ops::Limits::topk_blocks, 128},
                        {"num_key_value_heads", &ops::Limits::kv_heads, 64},
                        {"num_experts_per_tok", &ops::Limits::experts_per_token, 32},
                        {"num_local_experts", &ops::Limits::experts, 1024},
                        {"hidden_size", &ops::Limits::hidden, 16384},
                        {"vision_config.hidden_size", &ops::Limits::vision_hidden, 16384},
                        {"weight with scales", &ops::Limits::scaled_columns, 0},
                        {"--max-num-batched-tokens", &ops::Limits::tokens, std::int64_t{65535} * 4},
                        {"--max-model-len", &ops::Limits::context, 0}};
  for (const Size& size : sizes) {
    const std::int64_t most = most_of(rig, size.size);
    results.add_exact("refusal", "limits", size.most == 0 ? most > 16384 : most == size.most,
                      std::string(size.name) + ": up to " + std::to_string(most));
    ops::Limits limits = model_limits();
    limits.*size.size = most + 1;
    const std::string reason = rig->refusal(limits);
    const bool told = reason.find(size.name) != std::string::npos &&
                      reason.find(std::to_string(most + 1)) != std::string::npos &&
                      reason.find("at most " + std::to_string(most)) != std::string::npos;
    results.add_exact("refusal", "line", told, reason);
  }
  // Without sparse layers nothing is chosen.
  ops::Limits dense = model_limits();
  dense.topk_blocks = 0;
  dense.kv_heads = 1000;
  dense.context = std::int64_t{1} << 40;
  results.add_exact("refusal", "dense", rig->refusal(dense).empty(), rig->refusal(dense));
}

// Few rows of x by the longest rows of a weight with scales.
void test_longest_rows(Rig& rig, Results& results) {
  const std::int64_t columns = most_of(rig, &ops::Limits::scaled_columns) / 64 * 64;
  Random random(3);
  ops::Limits limits;
  limits.tokens = limits.sequences = 1;
  limits.hidden = columns;
  for (const WeightFormat format : {WeightFormat::mxfp8, WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const Weight weight(random, format, 32, columns, false);
    const std::vector<float> x = normal_values(random, columns);
    Matrix input(DType::f32, 1, columns, x), expected(DType::f32, 1, 32);
    judge(limits).linear(input.view(), {&weight.view, 1}, expected.view());
    for (const std::int64_t rows : {1, 12}) {  // by both of its shapes
      limits.tokens = limits.sequences = rows;
      rig.bind(limits);
      std::vector<float> all;
      for (std::int64_t row = 0; row < rows; ++row) all.insert(all.end(), x.begin(), x.end());
      DeviceMatrix input2(rig, DType::bf16, rows, columns, all), out(rig, DType::bf16, rows, 32);
      const WeightMatrix placed = rig.place(weight.view);
      rig->linear(input2.view(), {&placed, 1}, out.view());
      std::vector<float> first = out.values();
      first.resize(32);
      results.add("linear", "longest rows", norm_error(first, expected.values(), 4e-3), "4e-3 of the norm",
                  std::string(weight_format_name(format)) + ", " + std::to_string(columns) + " columns");
      rig.clear(results, "linear");
    }
  }
}

void test_route(Rig& rig, Results& results) {
  constexpr std::int64_t columns = 64, experts = ops::cuda::most_groups, k = ops::cuda::most_experts_a_token;
  Random random(5);
  ops::Limits limits;
  limits.tokens = limits.sequences = 2;
  limits.hidden = columns;
  limits.experts = experts;
  limits.experts_per_token = k;
  const Weight gate(random, WeightFormat::f32, experts, columns, false);
  const std::vector<float> x = normal_values(random, 2 * columns);
  std::vector<std::int32_t> ids(2 * k);
  std::vector<float> weights(ids.size());
  Matrix hidden(DType::f32, 2, columns, x);
  judge(limits).route(hidden.view(), gate.view, {}, {k, ids.data(), weights.data()});
  rig.bind(limits);
  DeviceMatrix hidden2(rig, DType::bf16, 2, columns, x);
  auto* ids2 = reinterpret_cast<std::int32_t*>(rig.reserve(ids.size() * 4));
  auto* weights2 = reinterpret_cast<float*>(rig.reserve(ids.size() * 4));
  rig->route(hidden2.view(), rig.place(gate.view), {}, {k, ids2, weights2});
  results.add_exact("route", "most experts", rig.download(ids2, ids.size()) == ids, "ids differ");
  rig.clear(results, "route");
}

}  // namespace

void test_limits(Rig& rig, Results& results, const Options&) {
  test_refusals(rig, results);
  test_longest_rows(rig, results);
  test_route(rig, results);
}

}  // namespace m3::test::gpu
