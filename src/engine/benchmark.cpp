#include "src/engine/benchmark.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "src/base/error.h"
#include "src/engine/profile.h"
#include "src/ops/readback.h"

namespace m3::engine {

namespace {

double elements(const WeightMatrix& weight) {
  return static_cast<double>(weight.rows) * static_cast<double>(weight.columns);
}
double elements(const ExpertWeights& weights) {
  return elements(weights.gate) + elements(weights.up) + elements(weights.down);
}
double bytes(const ExpertWeights& weights) {
  return static_cast<double>(weights.gate.stored_bytes() + weights.up.stored_bytes() + weights.down.stored_bytes());
}

// Experts that at least one token of a pass chose, by layer.
class ExpertCount {
 public:
  explicit ExpertCount(LoadedModel& model) : backend_(model.backend()), chosen_(model.config().layers.size()) {}

  model::ForwardTaps taps(std::int64_t tokens) {
    model::ForwardTaps taps;
    taps.on_routing = [this, tokens](int layer, const ops::Routing& routing) {
      auto& chosen = chosen_[static_cast<std::size_t>(layer)];
      const std::int64_t count = tokens * routing.experts_per_token;
      const std::int32_t* ids = ops::read_back(backend_, routing.expert_ids, count, buffer_);
      chosen.insert(ids, ids + count);
    };
    return taps;
  }
  std::size_t count(std::size_t layer) const { return chosen_[layer].size(); }

 private:
  ops::Backend& backend_;
  std::vector<std::byte> buffer_;
  std::vector<std::set<std::int32_t>> chosen_;
};

// Work of `tokens` tokens that belong to `sequences` sequences and follow `context` cached tokens each.
Work count_work(const LoadedModel& model, double tokens, double sequences, double context, const ExpertCount& experts) {
  const ModelConfig& config = model.checkpoint().config();
  const TextWeights& weights = model.checkpoint().weights();
  const kv::PageLayout& layout = model.pages().layout();
  const double heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const double own = tokens / sequences;             // new tokens of one sequence
  const double mean_keys = context + (own + 1) / 2;  // that a token sees
  const double all_keys = context + own;             // that a sequence has
  Work work;
  work.weight_bytes = static_cast<double>(weights.lm_head.stored_bytes());
  work.operations = 2 * sequences * elements(weights.lm_head);  // logits of the last token of each
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const TextLayerWeights& layer = weights.layers[i];
    const LayerKind& kind = config.layers[i];
    const bool indexer = kind.sparse_attention && !kind.reuses_blocks;
    std::vector<const WeightMatrix*> matrices = {&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj};
    if (indexer) matrices.insert(matrices.end(), {&layer.index_q_proj, &layer.index_k_proj});
    if (kind.moe) matrices.push_back(&layer.router);
    for (const WeightMatrix* matrix : matrices) {
      work.weight_bytes += static_cast<double>(matrix->stored_bytes());
      work.operations += 2 * tokens * elements(*matrix);
    }
    if (kind.moe) {
      work.weight_bytes += bytes(layer.shared) + static_cast<double>(experts.count(i)) * bytes(layer.experts.front());
      work.operations +=
          2 * tokens * (elements(layer.shared) + config.num_experts_per_tok * elements(layer.experts.front()));
    } else {
      work.weight_bytes += bytes(layer.dense);
      work.operations += 2 * tokens * elements(layer.dense);
    }
    const auto part_bytes = [&](kv::PartKind part) {
      const kv::Part* found = layout.find(static_cast<int>(i), part);
      return found == nullptr ? 0.0 : static_cast<double>(found->bytes) / 128;
    };
    const double kv_bytes = part_bytes(kv::PartKind::k) + part_bytes(kv::PartKind::v);
    const double chosen = static_cast<double>(config.topk_blocks) * 128;
    const double seen = kind.sparse_attention ? std::min(mean_keys, chosen) : mean_keys;
    // Each K/V byte once a sequence: a chunk's tokens choose different blocks, up to all of them.
    work.cache_bytes += sequences * kv_bytes * (kind.sparse_attention ? std::min(all_keys, own * chosen) : all_keys);
    work.operations += 4 * tokens * heads * seen * head_dim;
    if (indexer) {
      work.cache_bytes += sequences * part_bytes(kv::PartKind::index_k) * all_keys;
      work.operations += 2 * tokens * kv_heads * mean_keys * head_dim;
    }
  }
  return work;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

enum class Passes : std::uint8_t {
  alone,   // each is waited for
  queued,  // a device gets all at once: their mean is what a step takes where the host prepares it in time
};

// Seconds of one pass. Pass 0 warms up and may look at results; a device needs two more to record a pass. Operations on
// a device are profiled in passes of their own, since their times are told between launches of more than they are.
double time_passes(LoadedModel& model, int repeats, Passes how, Profile* profile,
                   const std::function<void(int pass)>& run) {
  ops::Backend& backend = model.backend();
  const bool device = !backend.has_host_memory();
  if (device && profile != nullptr) profile->enabled = false;
  int pass = 0;
  for (const int warming = device ? 3 : 1; pass < warming; ++pass) run(pass);
  backend.synchronize();
  if (profile != nullptr) profile->clear();
  std::vector<double> seconds;
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) {
    if (!device || how == Passes::alone) start = std::chrono::steady_clock::now();
    run(pass++);
    if (device && how == Passes::queued) continue;
    backend.synchronize();
    seconds.push_back(seconds_since(start));
  }
  if (device && how == Passes::queued) {
    backend.synchronize();
    seconds.push_back(seconds_since(start) / repeats);
  }
  if (device && profile != nullptr) {
    profile->enabled = true;
    for (int i = 0; i < repeats; ++i) run(pass++);
  }
  return median(seconds);
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab, std::uint64_t seed) {
  std::vector<std::int32_t> ids;
  std::uint64_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocab)));
  }
  return ids;
}

std::unique_ptr<kv::SequencePages> make_context(LoadedModel& model, std::int64_t context, std::uint64_t seed) {
  auto sequence = std::make_unique<kv::SequencePages>(model.pages());
  if (!sequence->extend(context)) fail_resource("the cache has no room for a context of {} tokens", context);
  fill_pages(model, sequence->pages(), seed);
  return sequence;
}

}  // namespace

void fill_pages(LoadedModel& model, std::span<const std::int32_t> pages, std::uint64_t seed) {
  // Uniform in ±sqrt(3): unit variance. Pages that follow each other are one run of memory in every part.
  RandomFill fill{.key = seed * 0x9E3779B97F4A7C15u, .parameter = 1.7320508};
  for (std::size_t first = 0; first < pages.size();) {
    std::size_t end = first + 1;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1) ++end;
    for (int layer = 0; layer < model.config().num_hidden_layers; ++layer) {
      const ops::LayerPages parts = model.pages().layer(layer);
      for (const ops::PagePart& part : {parts.k, parts.v, parts.index_k}) {
        if (part.data == nullptr) continue;
        fill.kind = part.dtype == DType::f32    ? RandomFill::Kind::f32
                    : part.dtype == DType::bf16 ? RandomFill::Kind::bf16
                                                : RandomFill::Kind::f8_e4m3;
        ++fill.key;
        model.backend().fill_random(
            {part.data + pages[first] * part.page_bytes, (end - first) * static_cast<std::size_t>(part.page_bytes)},
            fill);
      }
    }
    first = end;
  }
}

Timing time_decode(LoadedModel& model, std::int64_t batch, std::int64_t context, int repeats, Profile* profile) {
  std::vector<std::unique_ptr<kv::SequencePages>> sequences;
  for (std::int64_t s = 0; s < batch; ++s)
    sequences.push_back(make_context(model, context, static_cast<std::uint64_t>(s) + 1));
  std::vector<std::int32_t> rows;
  for (std::int64_t s = 0; s < batch; ++s) rows.push_back(static_cast<std::int32_t>(s));
  ExpertCount experts(model);
  model::RaggedBatch ragged;
  const std::function<void(int)> run = [&](int pass) {
    const std::vector<std::int32_t> ids =
        random_ids(batch, model.config().vocab_size, static_cast<std::uint64_t>(pass) + 17);
    ragged.clear();
    for (std::int64_t s = 0; s < batch; ++s) {
      kv::SequencePages& sequence = *sequences[static_cast<std::size_t>(s)];
      if (!sequence.extend(1)) fail_resource("the cache has no room for a context of {} tokens", context + 1);
      ragged.add({&ids[static_cast<std::size_t>(s)], 1}, context, sequence.pages());
    }
    model.forward(ragged, rows, pass == 0 ? experts.taps(batch) : model::ForwardTaps{});
    for (auto& sequence : sequences) sequence->truncate(context);
  };
  const double seconds = time_passes(model, repeats, Passes::queued, profile, run);
  return {seconds, count_work(model, static_cast<double>(batch), static_cast<double>(batch),
                              static_cast<double>(context), experts)};
}

Timing time_prefill(LoadedModel& model, std::int64_t tokens, std::int64_t context, int repeats, Profile* profile) {
  const auto sequence = make_context(model, context, 1);
  const std::vector<std::int32_t> ids = random_ids(tokens, model.config().vocab_size, 23);
  ExpertCount experts(model);
  model::RaggedBatch ragged;
  const std::function<void(int)> run = [&](int pass) {
    for (std::int64_t first = 0; first < tokens; first += model.max_batched_tokens()) {
      const std::int64_t count = std::min(model.max_batched_tokens(), tokens - first);
      if (!sequence->extend(count)) fail_resource("the cache has no room for {} tokens", context + tokens);
      ragged.clear();
      ragged.add(std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                 context + first, sequence->pages());
      const auto last = static_cast<std::int32_t>(count - 1);
      const bool whole = first + count == tokens;
      model.forward(ragged, whole ? std::span<const std::int32_t>(&last, 1) : std::span<const std::int32_t>(),
                    pass == 0 ? experts.taps(count) : model::ForwardTaps{});
    }
    sequence->truncate(context);
  };
  const double seconds = time_passes(model, repeats, Passes::alone, profile, run);
  return {seconds, count_work(model, static_cast<double>(tokens), 1, static_cast<double>(context), experts)};
}

}  // namespace m3::engine
