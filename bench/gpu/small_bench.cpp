// What stands between the large operations: norms, the router, qkv_finish, the draw.
#include "bench/gpu/bench.h"

namespace m3::gpu_bench {

void bench_small(Bench& bench) {
  for (const std::int64_t tokens : {1, 32, 8192}) {
    bench.bind(limits_for(tokens, 8192));
    const WeightMatrix gate = bench.weight(WeightFormat::f32, experts, hidden);
    const ops::Tensor x = bench.activations(tokens, hidden), delta = bench.activations(tokens, hidden),
                      y = bench.activations(tokens, hidden);
    const ops::NormWeight norm{
        {reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, hidden).values), hidden}, 1e-6f, true};
    const ops::Routing routing{4, bench.place(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * 4), 0)),
                               bench.place(std::vector<float>(static_cast<std::size_t>(tokens * 4), 0))};
    const double norm_seconds = bench.time(8, [&](int) { bench.backend->add_norm(x, delta, norm, y, nullptr); });
    bench.row_read("add_norm", std::to_string(tokens) + " tokens", norm_seconds,
                   static_cast<double>(tokens * hidden * 2 * 4));
    const double route_seconds = bench.time(8, [&](int) { bench.backend->route(x, gate, {}, routing); });
    bench.row_read("route", std::to_string(tokens) + " tokens", route_seconds,
                   static_cast<double>(experts * hidden * 4 + tokens * hidden * 2));
    bench.clear();
  }
}

// Norm, rotation and the caches' rows of one layer, at the end of contexts of 8K.
void bench_finish(Bench& bench) {
  for (const std::int64_t tokens : {1, 32, 8192}) {
    const std::int64_t sequences = tokens == 8192 ? 1 : tokens, context = 8192, heads = 64 + 2 * 4 + 4 + 1;
    bench.bind(limits_for(tokens, context));
    const std::int64_t pages = sequences * (context / 128);
    const Sequences batch(bench, sequences, tokens / sequences, context, pages);
    ops::LayerPages layer;
    layer.k = layer.v = {DType::bf16, nullptr, 4 * 128 * 128 * 2};
    layer.k.data = bench.memory(pages * layer.k.page_bytes);
    layer.v.data = bench.memory(pages * layer.v.page_bytes);
    layer.index_k = {DType::bf16, bench.memory(pages * 128 * 128 * 2), 128 * 128 * 2};
    const auto norm = [&] {
      return std::span(reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, 128).values), 128);
    };
    ops::QkvFinish args;
    args.query_heads = 64, args.kv_heads = args.index_heads = 4;
    args.q_norm = norm(), args.k_norm = norm(), args.index_q_norm = norm(), args.index_k_norm = norm();
    const ops::Tensor packed = bench.activations(tokens, heads * 128), q = bench.activations(tokens, 64 * 128),
                      index_q = bench.activations(tokens, 4 * 128);
    const ops::Tensor table{DType::f32, tokens, 64, 64,
                            bench.random(tokens * 64 * 4, {.kind = RandomFill::Kind::f32, .parameter = 1})};
    const double seconds =
        bench.time(8, [&](int) { bench.backend->qkv_finish(batch.batch, args, packed, table, layer, q, index_q); });
    bench.row_read("qkv_finish", std::to_string(tokens) + " tokens", seconds,
                   static_cast<double>(tokens * (heads * 128 * 2 * 2 + 64 * 4)));
    bench.clear();
  }
}

// With the upload of the rows' numbers and the wait for the ids.
void bench_sample(Bench& bench) {
  const std::int64_t vocab = 200064;
  struct Case {
    std::int64_t rows;
    float temperature;
    int top_k;
    float top_p;
  };
  for (const Case& shape : {Case{1, 0, 0, 1}, Case{32, 0, 0, 1}, Case{256, 0, 0, 1}, Case{1, 1, 40, 0.95f},
                            Case{32, 1, 40, 0.95f}, Case{32, 1, 0, 0.95f}}) {
    ops::Limits limits = limits_for(shape.rows, 128);
    limits.logits_rows = shape.rows;
    limits.vocab = vocab;
    bench.bind(limits);
    const ops::Tensor logits{DType::f32, shape.rows, vocab, vocab,
                             bench.random(shape.rows * vocab * 4, {.kind = RandomFill::Kind::f32, .parameter = 3})};
    std::vector<ops::SamplingRow> rows(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].temperature = shape.temperature;
      rows[i].top_k = shape.top_k;
      rows[i].top_p = shape.top_p;
      rows[i].seed = i;
    }
    std::vector<std::int32_t> ids(rows.size());
    const int times = 50;
    for (int i = 0; i < 3; ++i) bench.backend->sample(logits, rows, ids);
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) bench.backend->sample(logits, rows, ids);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / times;
    const std::string how = shape.temperature == 0 ? "greedy" : shape.top_k > 0 ? "top-k 40, top-p .95" : "top-p .95";
    bench.row_read("sample", std::to_string(shape.rows) + " rows, " + how, seconds,
                   static_cast<double>(shape.rows * vocab * 4));
    bench.clear();
  }
}

}  // namespace m3::gpu_bench
