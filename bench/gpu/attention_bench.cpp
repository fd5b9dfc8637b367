// select_blocks and attention over random pages.
#include "bench/gpu/bench.h"

namespace m3::gpu_bench {

void bench_select(Bench& bench) {
  struct Case {
    std::int64_t sequences, queries, context;
    DType dtype = DType::bf16;
  };
  const std::vector<Case> cases = {{1, 1, 8192},    {1, 1, 131072},    {1, 1, 1 << 20},   {16, 1, 131072},
                                   {64, 1, 65536},  {16, 1, 8192},     {64, 1, 8192},     {64, 1, 8192, DType::f8_e4m3},
                                   {1, 8192, 8192}, {1, 8192, 131072}, {1, 32768, 32768}, {1, 2048, 526336}};
  for (const Case& shape : cases) {
    const bool decode = shape.queries == 1;
    const std::string fp8 = shape.dtype == DType::bf16 ? "" : " fp8";
    const std::string what = decode ? std::to_string(shape.sequences) + " x " + sized(shape.context) + fp8
                                    : std::to_string(shape.queries) + " on " + sized(shape.context - shape.queries);
    if (!bench.is_wanted("select_blocks", what)) continue;
    bench.bind(limits_for(shape.sequences * shape.queries, shape.context));
    const std::int64_t element = shape.dtype == DType::bf16 ? 2 : 1;
    const std::int64_t pages = shape.sequences * ((shape.context + 127) / 128);
    const double bytes = static_cast<double>(shape.sequences * shape.context * 128 * element);
    const int copies = decode ? copies_for(bytes) : 2;
    std::vector<ops::LayerPages> layers;
    for (int i = 0; i < copies; ++i) {
      ops::LayerPages& layer = layers.emplace_back();
      const auto kind = shape.dtype == DType::bf16 ? RandomFill::Kind::bf16 : RandomFill::Kind::f8_e4m3;
      layer.index_k = {shape.dtype, bench.random(pages * 128 * 128 * element, {.kind = kind, .parameter = 1}),
                       128 * 128 * element};
    }
    const Sequences sequences(bench, shape.sequences, shape.queries, shape.context, pages);
    const ops::Tensor q = bench.activations(sequences.batch.tokens, 512);
    auto* ids = reinterpret_cast<std::int32_t*>(bench.memory(std::int64_t{sequences.batch.tokens} * 4 * 16 * 4));
    ops::SelectBlocks args;
    args.index_heads = 4;
    args.topk = 16;
    const double seconds = bench.time(
        copies,
        [&](int i) {
          bench.backend->select_blocks(sequences.batch, args, q, layers[static_cast<std::size_t>(i)], ids);
        },
        !decode);
    if (decode) {
      bench.row_read("select_blocks", what, seconds, bytes);
    } else {
      const double first = static_cast<double>(shape.context - shape.queries);
      const double pairs = static_cast<double>(shape.queries) * (first + static_cast<double>(shape.queries) / 2);
      bench.row_matmul("select_blocks", what, seconds, pairs * 4 * 128 * 2);
    }
    bench.clear();
  }
}

void bench_attention(Bench& bench) {
  struct Case {
    std::int64_t sequences, queries, context;
    DType dtype = DType::bf16;
    bool dense = false;
    bool same = false;  // the same pages in each call, which then lie in the L2: as peers are timed
  };
  const std::vector<Case> cases = {{1, 1, 8192},
                                   {1, 1, 8192, DType::bf16, false, true},
                                   {16, 1, 8192},
                                   {64, 1, 8192},
                                   {128, 1, 32768},
                                   {64, 1, 8192, DType::f8_e4m3},
                                   {1, 1, 8192, DType::bf16, true},
                                   {32, 1, 8192, DType::bf16, true},
                                   {1, 8192, 8192},
                                   {1, 32768, 32768},
                                   {1, 8192, 131072},
                                   {1, 8192, 8192, DType::f8_e4m3},
                                   {1, 32768, 32768, DType::f8_e4m3},
                                   {1, 8192, 131072, DType::f8_e4m3},
                                   {1, 8192, 8192, DType::bf16, true},
                                   {1, 8192, 8192, DType::f8_e4m3, true},
                                   {1, 2048, 124928, DType::bf16, true}};
  std::mt19937 random(9);
  for (const Case& shape : cases) {
    const bool decode = shape.queries == 1;
    const char* name = shape.dense ? "attend_dense" : "attend_sparse";
    const std::string fp8 = shape.dtype == DType::bf16 ? "" : " fp8";
    const std::string what = (decode ? std::to_string(shape.sequences) + " x " + sized(shape.context)
                                     : std::to_string(shape.queries) + " on " + sized(shape.context - shape.queries)) +
                             fp8 + (shape.same ? ", in the L2" : "");
    if (!bench.is_wanted(name, what)) continue;
    bench.bind(limits_for(shape.sequences * shape.queries, shape.context));
    const std::int64_t element = shape.dtype == DType::bf16 ? 2 : 1;
    const std::int64_t pages = shape.sequences * ((shape.context + 127) / 128);
    const std::int64_t page_bytes = 4 * 128 * 128 * element;
    const double keys = shape.dense ? static_cast<double>(shape.context) : 2048;
    const double bytes = static_cast<double>(shape.sequences) * keys * 4 * 128 * 2 * static_cast<double>(element);
    const int copies = shape.same ? 1 : decode ? std::min<int>(copies_for(bytes), 24) : 2;
    std::vector<ops::LayerPages> layers;
    for (int i = 0; i < copies; ++i) {
      ops::LayerPages& layer = layers.emplace_back();
      const auto kind = shape.dtype == DType::bf16 ? RandomFill::Kind::bf16 : RandomFill::Kind::f8_e4m3;
      layer.k = {shape.dtype, bench.random(pages * page_bytes, {.kind = kind, .parameter = 1}), page_bytes};
      layer.v = {shape.dtype, bench.random(pages * page_bytes, {.kind = kind, .parameter = 1}), page_bytes};
    }
    const Sequences sequences(bench, shape.sequences, shape.queries, shape.context, pages);
    std::vector<std::int32_t> ids;
    double useful = 0;
    for (std::int64_t s = 0; s < shape.sequences; ++s) {
      for (std::int64_t i = 0; i < shape.queries; ++i) {
        const std::int64_t position = shape.context - shape.queries + i;
        const auto own = static_cast<std::int32_t>(position / 128);
        for (int head = 0; head < 4; ++head) {
          std::vector<std::int32_t> chosen;
          while (static_cast<int>(chosen.size()) < std::min(own, 15)) {
            const auto block = static_cast<std::int32_t>(random() % static_cast<unsigned>(own));
            if (std::find(chosen.begin(), chosen.end(), block) == chosen.end()) chosen.push_back(block);
          }
          chosen.push_back(own);
          std::sort(chosen.begin(), chosen.end());
          useful += static_cast<double>(chosen.size() - 1) * 128 + static_cast<double>(position % 128 + 1);
          chosen.resize(16, -1);
          ids.insert(ids.end(), chosen.begin(), chosen.end());
        }
      }
    }
    const std::int32_t* block_ids = bench.place(ids);
    const ops::Tensor q = bench.activations(sequences.batch.tokens, 8192),
                      out = bench.activations(sequences.batch.tokens, 8192);
    const ops::Attention args{64, 4, 0.0883883f, 0, 16};
    const double seconds = bench.time(
        copies,
        [&](int i) {
          const ops::LayerPages& layer = layers[static_cast<std::size_t>(i)];
          if (shape.dense) {
            bench.backend->attend_dense(sequences.batch, args, q, layer, out);
          } else {
            bench.backend->attend_sparse(sequences.batch, args, q, layer, block_ids, out);
          }
        },
        !decode);
    if (decode) {
      bench.row_read(name, what, seconds, bytes);
    } else {
      if (shape.dense)
        useful = static_cast<double>(shape.queries) *
                 (static_cast<double>(shape.context) - static_cast<double>(shape.queries) / 2) * 4;
      bench.row_matmul(name, what, seconds, useful * 16 * 128 * 4);
    }
    bench.clear();
  }
  // As a layer has them: attention reads what was just chosen.
  for (const std::int64_t count : {1, 16}) {
    if (!bench.is_wanted("select, attend", std::to_string(count) + " x 8K")) continue;
    constexpr std::int64_t context = 8192, page_bytes = 4 * 128 * 128 * 2;
    bench.bind(limits_for(count, context));
    const std::int64_t pages = count * context / 128;
    const double bytes = static_cast<double>(count) * (context * 128 * 2 + 2048 * 4 * 128 * 2 * 2);
    const int copies = std::min<int>(copies_for(bytes), 24);
    std::vector<ops::LayerPages> layers;
    const RandomFill fill{.kind = RandomFill::Kind::bf16, .parameter = 1};
    for (int i = 0; i < copies; ++i) {
      ops::LayerPages& layer = layers.emplace_back();
      layer.k = {DType::bf16, bench.random(pages * page_bytes, fill), page_bytes};
      layer.v = {DType::bf16, bench.random(pages * page_bytes, fill), page_bytes};
      layer.index_k = {DType::bf16, bench.random(pages * page_bytes / 4, fill), page_bytes / 4};
    }
    const Sequences sequences(bench, count, 1, context, pages);
    const ops::Tensor index_q = bench.activations(sequences.batch.tokens, 512),
                      q = bench.activations(sequences.batch.tokens, 8192),
                      out = bench.activations(sequences.batch.tokens, 8192);
    auto* ids = reinterpret_cast<std::int32_t*>(bench.memory(count * 4 * 16 * 4));
    ops::SelectBlocks select;
    select.index_heads = 4;
    select.topk = 16;
    const double seconds = bench.time(copies, [&](int i) {
      const ops::LayerPages& layer = layers[static_cast<std::size_t>(i)];
      bench.backend->select_blocks(sequences.batch, select, index_q, layer, ids);
      bench.backend->attend_sparse(sequences.batch, {64, 4, 0.0883883f, 0, 16}, q, layer, ids, out);
    });
    bench.row_read("select, attend", std::to_string(count) + " x " + sized(context), seconds, bytes);
    bench.clear();
  }
}

}  // namespace m3::gpu_bench
