// What stands between the large operations: norms, the router, qkv_finish, the draw.
#include "bench/gpu/bench.h"

namespace m3::gpu_bench {

void bench_small(Bench& bench) {
  for (const std::int64_t tokens : {1, 32, 8192}) {
    bench.bind(limits_for(tokens, 8192));
    const std::string what = std::to_string(tokens) + " tokens";
    {
      const auto bytes = static_cast<double>(tokens * hidden * 2 * 4);
      const int copies = copies_for(bytes, most_copies);
      const Rotating x = bench.rotating(copies, tokens, hidden), delta = bench.rotating(copies, tokens, hidden),
                     y = bench.rotating(copies, tokens, hidden),
                     weight = bench.rotating_floats(copies, 1, hidden, 0.02);
      const double seconds = bench.time(copies, [&](int i) {
        const ops::NormWeight norm{{reinterpret_cast<const float*>(weight[i].data), hidden}, 1e-6f, true};
        bench.backend->add_norm(x[i], delta[i], norm, y[i], nullptr);
      });
      bench.row_read("add_norm", what, seconds, bytes);
    }
    bench.clear();
    bench.bind(limits_for(tokens, 8192));
    const auto bytes = static_cast<double>(experts * hidden * 4 + tokens * hidden * 2);
    const int copies = copies_for(bytes);
    const std::vector<WeightMatrix> gates = bench.weights(copies, WeightFormat::f32, experts, hidden);
    const Rotating x = bench.rotating(copies, tokens, hidden);
    const ops::Routing routing{4, bench.place(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * 4), 0)),
                               bench.place(std::vector<float>(static_cast<std::size_t>(tokens * 4), 0))};
    const double seconds =
        bench.time(copies, [&](int i) { bench.backend->route(x[i], gates[static_cast<std::size_t>(i)], {}, routing); });
    bench.row_read("route", what, seconds, bytes);
    bench.clear();
  }
}

// Norm, rotation and the caches' rows of one layer, at the end of contexts of 8K.
void bench_finish(Bench& bench) {
  for (const std::int64_t tokens : {1, 32, 8192}) {
    const std::int64_t sequences = tokens == 8192 ? 1 : tokens, context = 8192, heads = 64 + 2 * 4 + 4 + 1;
    bench.bind(limits_for(tokens, context));
    const auto bytes = static_cast<double>(tokens * (heads * 128 * 2 * 2 + 64 * 4));
    const int copies = copies_for(bytes, most_copies);
    const std::int64_t pages = sequences * (context / 128);
    const Sequences batch(bench, sequences, tokens / sequences, context, pages);
    ops::LayerPages first;
    first.k = first.v = {DType::bf16, nullptr, 4 * 128 * 128 * 2};
    first.k.data = bench.memory((pages + copies) * first.k.page_bytes);
    first.v.data = bench.memory((pages + copies) * first.v.page_bytes);
    first.index_k = {DType::bf16, bench.memory((pages + copies) * 128 * 128 * 2), 128 * 128 * 2};
    const auto norm = [&] {
      return std::span(reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, 128).values), 128);
    };
    ops::QkvFinish args;
    args.query_heads = 64, args.kv_heads = args.index_heads = 4;
    args.q_norm = norm(), args.k_norm = norm(), args.index_q_norm = norm(), args.index_k_norm = norm();
    const Rotating packed = bench.rotating(copies, tokens, heads * 128), q = bench.rotating(copies, tokens, 64 * 128),
                   index_q = bench.rotating(copies, tokens, 4 * 128),
                   table = bench.rotating_floats(copies, tokens, 64, 1);
    const double seconds = bench.time(copies, [&](int i) {
      ops::LayerPages layer = first;
      for (ops::PagePart* part : {&layer.k, &layer.v, &layer.index_k}) part->data += i * part->page_bytes;
      bench.backend->qkv_finish(batch.batch, args, packed[i], table[i], layer, q[i], index_q[i]);
    });
    bench.row_read("qkv_finish", std::to_string(tokens) + " tokens", seconds, bytes);
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
    const auto bytes = static_cast<double>(shape.rows * vocab * 4);
    const int times = 100, copies = copies_for(bytes, times);
    const Rotating logits = bench.rotating_floats(copies, shape.rows, vocab, 3);
    std::vector<ops::SamplingRow> rows(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].temperature = shape.temperature;
      rows[i].top_k = shape.top_k;
      rows[i].top_p = shape.top_p;
      rows[i].seed = i;
    }
    std::vector<std::int32_t> ids(rows.size());
    for (int i = 0; i < copies; ++i) bench.backend->sample(logits[i], rows, ids);
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) bench.backend->sample(logits[i], rows, ids);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / times;
    const std::string how = shape.temperature == 0 ? "greedy" : shape.top_k > 0 ? "top-k 40, top-p .95" : "top-p .95";
    bench.row_read("sample", std::to_string(shape.rows) + " rows, " + how, seconds, bytes);
    bench.clear();
  }
}

}  // namespace m3::gpu_bench
