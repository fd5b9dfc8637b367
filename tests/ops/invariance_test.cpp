// A row's result depends on that row alone: bit for bit the same in any batch, chunking, page order and thread count.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

constexpr std::int64_t hidden_size = 96;
constexpr std::int64_t width = 64;
constexpr int query_heads = 8;
constexpr int kv_heads = 4;
constexpr int experts = 6;
constexpr int per_token = 2;
constexpr int topk = 4;
constexpr std::int32_t pool_pages = 64;

// A sequence: what is in its cache already, and the tokens that follow.
struct Sequence {
  std::int64_t cached;
  std::int64_t tokens;
};
const std::vector<Sequence> sequences = {{0, 70}, {1000, 9}, {700, 1}, {127, 3}, {2300, 2}, {511, 5}};

// Tokens [begin, begin + count) past the cached ones of a sequence.
struct Piece {
  int sequence;
  std::int64_t begin;
  std::int64_t count;
};

// Everything a layer computes for one token.
struct TokenResult {
  std::vector<float> attention, dense, residual, out, logits;
  std::vector<std::int32_t> blocks, expert_ids;
  std::vector<float> expert_weights;
  bool operator==(const TokenResult&) const = default;
};
using Results = std::map<std::pair<int, std::int64_t>, TokenResult>;

class Layer {
 public:
  explicit Layer(WeightFormat format, DType cache) : cache_(cache) {
    Random random(1);
    const std::int64_t packed = (query_heads + 2 * kv_heads + kv_heads + 1) * 128;
    qkv_ = add(random, format, packed, hidden_size);
    o_ = add(random, WeightFormat::bf16, hidden_size, query_heads * 128);
    gate_ = add(random, WeightFormat::f32, experts, hidden_size);
    head_ = add(random, format, 150, hidden_size);
    for (int i = 0; i <= experts; ++i) {
      mlps_.push_back({add(random, format, width, hidden_size), add(random, format, width, hidden_size),
                       add(random, format, hidden_size, width)});
    }
    norm_ = normal_values(random, hidden_size, 0.1f);
    head_norm_ = normal_values(random, 128, 0.1f);
    for (const Sequence& sequence : sequences) {
      inputs_.push_back(normal_values(random, sequence.tokens * hidden_size));
      for (auto* cached : {&cached_k_, &cached_v_}) {
        cached->push_back(normal_values(random, sequence.cached * kv_heads * 128));
      }
      cached_index_.push_back(normal_values(random, sequence.cached * 128));
    }
    inv_freq_.resize(32);
    ops::plain_inverse_frequencies(5e6, inv_freq_);
  }

  // Runs the steps in turn, each a batch of pieces, over one set of pages.
  Results run(const ops::BackendOptions& options, int threads, unsigned page_seed,
              const std::vector<std::vector<Piece>>& steps) {
    std::vector<SequenceShape> whole;
    for (const Sequence& sequence : sequences) whole.push_back({sequence.cached + sequence.tokens, 1});
    const RaggedBatch owners(whole, pool_pages, page_seed);
    PageMemory k(cache_, pool_pages, kv_heads), v(cache_, pool_pages, kv_heads), index_k(cache_, pool_pages, 1);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::int64_t p = 0; p < sequences[s].cached; ++p) {
        const std::int32_t page =
            owners.page_table[s * static_cast<std::size_t>(owners.stride) + static_cast<std::size_t>(p / 128)];
        for (int head = 0; head < kv_heads; ++head) {
          k.write(page, head, p % 128, row(cached_k_[s], p * kv_heads + head));
          v.write(page, head, p % 128, row(cached_v_[s], p * kv_heads + head));
        }
        index_k.write(page, 0, p % 128, row(cached_index_[s], p));
      }
    }
    ops::LayerPages pages;
    pages.k = k.part();
    pages.v = v.part();
    pages.index_k = index_k.part();
    Results results;
    TestBackend backend(options, threads, limits(owners));
    for (const std::vector<Piece>& pieces : steps) run_step(backend, pages, owners, pieces, results);
    return results;
  }

 private:
  static std::vector<float> row(const std::vector<float>& values, std::int64_t index) {
    return {values.begin() + index * 128, values.begin() + index * 128 + 128};
  }

  WeightMatrix add(Random& random, WeightFormat format, std::int64_t rows, std::int64_t columns) {
    weights_.emplace_back(random, format, rows, columns, false);
    return weights_.back().view;
  }

  static ops::Limits limits(const RaggedBatch& owners) {
    ops::Limits limits;
    limits.tokens = limits.logits_rows = 128;
    limits.sequences = 128;
    limits.context = std::int64_t{owners.stride} * 128;
    limits.hidden = hidden_size;
    limits.intermediate = width;
    limits.query_heads = query_heads;
    limits.kv_heads = kv_heads;
    limits.experts = experts;
    limits.experts_per_token = per_token;
    limits.topk_blocks = topk;
    limits.vocab = 150;
    return limits;
  }

  void run_step(TestBackend& backend, const ops::LayerPages& pages, const RaggedBatch& owners,
                const std::vector<Piece>& pieces, Results& results) {
    RaggedBatch batch({}, 1, 0);
    batch.stride = owners.stride;
    std::vector<float> x;
    std::vector<std::pair<int, std::int64_t>> keys;
    for (const Piece& piece : pieces) {
      const auto s = static_cast<std::size_t>(piece.sequence);
      for (std::int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
        batch.positions.push_back(static_cast<std::int32_t>(sequences[s].cached + i));
        batch.sequence_of_token.push_back(static_cast<std::int32_t>(batch.context_lengths.size()));
        batch.token_ids.push_back(0);
        x.insert(x.end(), inputs_[s].begin() + i * hidden_size, inputs_[s].begin() + (i + 1) * hidden_size);
        keys.push_back({piece.sequence, i});
      }
      batch.context_lengths.push_back(static_cast<std::int32_t>(sequences[s].cached + piece.begin + piece.count));
      batch.query_begin.push_back(batch.tokens());
      const auto first = owners.page_table.begin() + static_cast<std::ptrdiff_t>(s) * owners.stride;
      batch.page_table.insert(batch.page_table.end(), first, first + owners.stride);
    }
    const ops::Batch view = batch.view();
    const DType dtype = backend.dtype();
    const std::int64_t tokens = batch.tokens();

    Matrix residual(dtype, tokens, hidden_size, x), normed(dtype, tokens, hidden_size);
    Matrix packed(dtype, tokens, qkv_.rows), table(DType::f32, tokens, 64);
    Matrix q(dtype, tokens, query_heads * 128), index_q(dtype, tokens, kv_heads * 128);
    Matrix attention(dtype, tokens, query_heads * 128), dense(dtype, tokens, query_heads * 128);
    Matrix delta(dtype, tokens, hidden_size), out(dtype, tokens, hidden_size);
    Matrix logits(DType::f32, tokens, head_.rows);
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(tokens * kv_heads * topk));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * per_token));
    std::vector<float> ids_weights(ids.size());
    std::vector<std::int32_t> all_rows;
    for (std::int32_t t = 0; t < tokens; ++t) all_rows.push_back(t);

    const ops::NormWeight norm{norm_, 1e-6f, true};
    backend->rotary_table(view, inv_freq_, 1, table.view());
    backend->add_norm(residual.view(), {}, norm, normed.view(), nullptr);
    backend->linear(normed.view(), {&qkv_, 1}, packed.view());
    ops::QkvFinish finish;
    finish.query_heads = query_heads;
    finish.kv_heads = finish.index_heads = kv_heads;
    finish.q_norm = finish.k_norm = finish.index_q_norm = finish.index_k_norm = head_norm_;
    backend->qkv_finish(view, finish, packed.view(), table.view(), pages, q.view(), index_q.view());
    ops::SelectBlocks select;
    select.index_heads = kv_heads;
    select.topk = topk;
    backend->select_blocks(view, select, index_q.view(), pages, blocks.data());
    const ops::Attention args{query_heads, kv_heads, 0.0883883f, 0, topk};
    backend->attend_sparse(view, args, q.view(), pages, blocks.data(), attention.view());
    backend->attend_dense(view, args, q.view(), pages, dense.view());
    backend->linear(attention.view(), {&o_, 1}, delta.view());
    backend->add_norm(residual.view(), delta.view(), norm, normed.view(), nullptr);
    const ops::Routing routing{per_token, ids.data(), ids_weights.data()};
    backend->route(normed.view(), gate_, {}, routing);
    backend->experts(normed.view(), routing, 0, {mlps_.data(), experts}, &mlps_[experts], 2.0f, {}, out.view());
    backend->logits(out.view(), all_rows, head_, logits.view());

    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto slice = [&](const auto& values, std::int64_t count) {
        return std::vector(values.begin() + t * count, values.begin() + (t + 1) * count);
      };
      results[keys[static_cast<std::size_t>(t)]] = {attention.row(t),      dense.row(t),
                                                    residual.row(t),       out.row(t),
                                                    logits.row(t),         slice(blocks, kv_heads * topk),
                                                    slice(ids, per_token), slice(ids_weights, per_token)};
    }
  }

  DType cache_;
  std::deque<Weight> weights_;
  WeightMatrix qkv_, o_, gate_, head_;
  std::vector<ops::MlpWeights> mlps_;
  std::vector<float> norm_, head_norm_, inv_freq_;
  std::vector<std::vector<float>> inputs_, cached_k_, cached_v_, cached_index_;
};

std::vector<Piece> everything() {
  std::vector<Piece> pieces;
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
    pieces.push_back({s, 0, sequences[static_cast<std::size_t>(s)].tokens});
  }
  return pieces;
}

void expect_same(const Results& actual, const Results& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (const auto& [key, result] : expected) {
    ASSERT_TRUE(actual.at(key) == result) << what << ": sequence " << key.first << ", token " << key.second;
  }
}

class Invariance : public testing::TestWithParam<std::tuple<WeightFormat, DType>> {};

TEST_P(Invariance, BitForBit) {
  const auto [format, cache] = GetParam();
  Layer layer(format, cache);
  for (const ops::BackendOptions& options : all_options()) {
    const std::string name = name_of(options) + " ";
    const Results expected = layer.run(options, 1, 3, {everything()});
    expect_same(layer.run(options, 2, 3, {everything()}), expected, name + "2 threads");
    expect_same(layer.run(options, 5, 3, {everything()}), expected, name + "5 threads");
    expect_same(layer.run(options, 2, 99, {everything()}), expected, name + "another page order");

    std::vector<std::vector<Piece>> alone;
    for (const Piece& piece : everything()) alone.push_back({piece});
    expect_same(layer.run(options, 3, 4, alone), expected, name + "one sequence at a time");

    std::vector<std::vector<Piece>> single;
    std::vector<std::vector<Piece>> mixed;
    for (const Piece& piece : everything()) {
      for (std::int64_t i = 0; i < piece.count; ++i) single.push_back({{piece.sequence, i, 1}});
    }
    // Chunks of 1, 2, 3, ... tokens of all sequences that still have some.
    std::vector<std::int64_t> done(sequences.size(), 0);
    for (std::int64_t chunk = 1;; ++chunk) {
      std::vector<Piece> step;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        const std::int64_t count = std::min(chunk, sequences[s].tokens - done[s]);
        if (count > 0) step.push_back({static_cast<int>(s), done[s], count});
        done[s] += count;
      }
      if (step.empty()) break;
      mixed.push_back(step);
    }
    expect_same(layer.run(options, 2, 5, mixed), expected, name + "growing chunks");
    expect_same(layer.run(options, 4, 6, single), expected, name + "one token at a time");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Invariance,
    testing::Values(std::tuple{WeightFormat::bf16, DType::bf16}, std::tuple{WeightFormat::f32, DType::f32},
                    std::tuple{WeightFormat::f16, DType::bf16}, std::tuple{WeightFormat::fp8, DType::f8_e4m3},
                    std::tuple{WeightFormat::mxfp8, DType::bf16}, std::tuple{WeightFormat::mxfp4, DType::f8_e4m3},
                    std::tuple{WeightFormat::nvfp4, DType::bf16}));

}  // namespace
}  // namespace m3::test
