#include "src/engine/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

namespace m3::engine {

namespace {

double elements(const WeightMatrix& weight) {
  return static_cast<double>(weight.rows) * static_cast<double>(weight.columns);
}
double elements(const ops::MlpWeights& weights) {
  return elements(weights.gate) + elements(weights.up) + elements(weights.down);
}
double stored(const WeightMatrix& weight) { return static_cast<double>(weight.stored_bytes()); }
double stored(const ops::MlpWeights& weights) {
  return stored(weights.gate) + stored(weights.up) + stored(weights.down);
}
double bytes_of(const ops::Tensor& tensor) {
  return static_cast<double>(tensor.rows * tensor.columns) * static_cast<double>(dtype_size(tensor.dtype));
}

// Keys that a batch's tokens see, `most` of them a token.
struct Keys {
  double of_tokens = 0;     // summed over tokens
  double of_sequences = 0;  // read at least: once a sequence
};

Keys count_keys(const ops::Batch& given, std::int64_t most) {
  const ops::Batch& batch = given.host != nullptr ? *given.host : given;
  Keys keys;
  std::vector<double> furthest(static_cast<std::size_t>(batch.sequences));
  std::vector<double> seen(static_cast<std::size_t>(batch.sequences));
  for (std::int32_t t = 0; t < batch.tokens; ++t) {
    const std::int32_t sequence = batch.sequence_of_token[t];
    if (sequence < 0 || sequence >= batch.sequences || batch.positions[t] < 0) continue;
    const auto s = static_cast<std::size_t>(sequence);
    const double visible = batch.positions[t] + 1.0;
    const double chosen = most > 0 ? std::min(visible, static_cast<double>(most)) : visible;
    keys.of_tokens += chosen;
    furthest[s] = std::max(furthest[s], visible);
    seen[s] += chosen;
  }
  for (std::size_t s = 0; s < seen.size(); ++s) keys.of_sequences += std::min(furthest[s], seen[s]);
  return keys;
}

double key_bytes(const ops::PagePart& part) {
  return static_cast<double>(ops::head_dim) * static_cast<double>(dtype_size(part.dtype));
}

class ProfiledBackend final : public ops::Backend {
 public:
  ProfiledBackend(std::unique_ptr<ops::Backend> backend, Profile& profile)
      : backend_(std::move(backend)), profile_(profile) {}

  std::string_view name() const override { return backend_->name(); }
  std::string description() const override { return backend_->description(); }
  DType activation_dtype() const override { return backend_->activation_dtype(); }
  bool has_host_memory() const override { return backend_->has_host_memory(); }
  ops::Memory allocate(std::int64_t bytes) override { return backend_->allocate(bytes); }
  ops::MemoryState memory_state() const override { return backend_->memory_state(); }
  void upload(std::byte* to, std::span<const std::byte> from) override { backend_->upload(to, from); }
  void upload(std::span<const ops::Transfer> transfers, const std::function<void(std::int64_t)>& progress) override {
    backend_->upload(transfers, progress);
  }
  void download(std::span<std::byte> to, const std::byte* from) override { backend_->download(to, from); }
  void synchronize() override { backend_->synchronize(); }
  bool idle() const override { return backend_->idle(); }
  void fill_random(std::span<std::byte> to, const RandomFill& fill) override { backend_->fill_random(to, fill); }
  // Each operation is timed alone, so that no pass is played whole.
  bool begin_pass(std::uint64_t key) override {
    const bool played = backend_->begin_pass(profile_.enabled ? 0 : key);
    if (!profile_.enabled) return played;
    marking_ = backend_->begin_marks();
    return played;
  }
  void end_pass() override {
    const std::vector<double> seconds = marking_ ? backend_->take_marks() : std::vector<double>();
    backend_->end_pass();
    for (std::size_t i = 0; i < marked_.size() && i < seconds.size(); ++i)
      profile_.add(marked_[i].operation, seconds[i], marked_[i].bytes, marked_[i].operations);
    marked_.clear();
    marking_ = false;
  }
  void drop_pass() override {
    backend_->drop_pass();
    if (marking_) backend_->take_marks();
    marked_.clear();
    marking_ = false;
  }
  std::string refusal(const ops::Limits& limits) const override { return backend_->refusal(limits); }
  std::int64_t workspace_bytes(const ops::Limits& limits) const override { return backend_->workspace_bytes(limits); }
  void bind_workspace(std::span<std::byte> workspace, const ops::Limits& limits) override {
    backend_->bind_workspace(workspace, limits);
  }

  void embed(const ops::Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
             const ops::Tensor& residual) override {
    timed("embed", bytes_of(residual), 0, [&] { backend_->embed(batch, table, previous, residual); });
  }
  void rotary_table(const ops::Batch& batch, std::span<const float> inv_freq, float attention_factor,
                    const ops::Tensor& table) override {
    timed("rotary_table", 0, 0, [&] { backend_->rotary_table(batch, inv_freq, attention_factor, table); });
  }
  void add_norm(const ops::Tensor& residual, const ops::Tensor& delta, const ops::NormWeight& norm,
                const ops::Tensor& normed, ops::Communicator* communicator) override {
    const double bytes = bytes_of(residual) + (delta.empty() ? 0 : bytes_of(delta));
    timed("add_norm", bytes, 0, [&] { backend_->add_norm(residual, delta, norm, normed, communicator); });
  }
  void linear(const ops::Tensor& x, std::span<const WeightMatrix> weights, const ops::Tensor& out) override {
    double bytes = bytes_of(x);
    double operations = 0;
    for (const WeightMatrix& weight : weights) {
      bytes += stored(weight);
      operations += 2 * static_cast<double>(x.rows) * elements(weight);
    }
    timed(fmt::format("linear [{}, {}]", out.columns, x.columns), bytes, operations,
          [&] { backend_->linear(x, weights, out); });
  }
  void qkv_finish(const ops::Batch& batch, const ops::QkvFinish& args, const ops::Tensor& packed,
                  const ops::Tensor& table, const ops::LayerPages& pages, const ops::Tensor& q,
                  const ops::Tensor& index_q) override {
    timed("qkv_finish", bytes_of(packed), 0,
          [&] { backend_->qkv_finish(batch, args, packed, table, pages, q, index_q); });
  }
  void select_blocks(const ops::Batch& batch, const ops::SelectBlocks& args, const ops::Tensor& index_q,
                     const ops::LayerPages& pages, std::int32_t* block_ids) override {
    const Keys keys = keys_of(batch, 0);
    timed("select_blocks", keys.of_sequences * key_bytes(pages.index_k),
          2 * keys.of_tokens * args.index_heads * ops::head_dim,
          [&] { backend_->select_blocks(batch, args, index_q, pages, block_ids); });
  }
  void attend_dense(const ops::Batch& batch, const ops::Attention& args, const ops::Tensor& q,
                    const ops::LayerPages& pages, const ops::Tensor& out) override {
    attend("attend_dense", batch, args, args.window, pages,
           [&] { backend_->attend_dense(batch, args, q, pages, out); });
  }
  void attend_sparse(const ops::Batch& batch, const ops::Attention& args, const ops::Tensor& q,
                     const ops::LayerPages& pages, const std::int32_t* block_ids, const ops::Tensor& out) override {
    attend("attend_sparse", batch, args, std::int64_t{args.topk} * ops::page_tokens, pages,
           [&] { backend_->attend_sparse(batch, args, q, pages, block_ids, out); });
  }
  void route(const ops::Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
             const ops::Routing& routing) override {
    timed("route", bytes_of(hidden) + stored(gate), 2 * static_cast<double>(hidden.rows) * elements(gate),
          [&] { backend_->route(hidden, gate, bias, routing); });
  }
  void experts(const ops::Tensor& hidden, const ops::Routing& routing, int first,
               std::span<const ops::MlpWeights> experts, const ops::MlpWeights* shared, float routed_scaling_factor,
               const ops::Activation& activation, const ops::Tensor& out) override {
    const auto rows = static_cast<double>(hidden.rows);
    double bytes = bytes_of(hidden);
    double operations = 0;
    if (!experts.empty()) {
      bytes +=
          different_experts(routing, hidden.rows, first, static_cast<int>(experts.size())) * stored(experts.front());
      operations += 2 * rows * routing.experts_per_token * elements(experts.front());
    }
    if (shared != nullptr) {
      bytes += stored(*shared);
      operations += 2 * rows * elements(*shared);
    }
    timed("experts", bytes, operations,
          [&] { backend_->experts(hidden, routing, first, experts, shared, routed_scaling_factor, activation, out); });
  }
  void mlp(const ops::Tensor& hidden, const ops::MlpWeights& weights, const ops::Activation& activation,
           const ops::Tensor& out) override {
    timed("mlp", bytes_of(hidden) + stored(weights), 2 * static_cast<double>(hidden.rows) * elements(weights),
          [&] { backend_->mlp(hidden, weights, activation, out); });
  }
  void logits(const ops::Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
              const ops::Tensor& logits) override {
    timed("logits", stored(head), 2 * static_cast<double>(row_ids.size()) * elements(head),
          [&] { backend_->logits(hidden, row_ids, head, logits); });
  }
  void begin_sample(const ops::Tensor& logits, std::span<const ops::SamplingRow> rows) override {
    timed("sample", bytes_of(logits), 0, [&] { backend_->begin_sample(logits, rows); });
  }
  void end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) override {
    backend_->end_sample(ids, finite);
  }
  std::span<const float> raw_logits(std::int64_t row) const override { return backend_->raw_logits(row); }
  const std::int32_t* sampled_ids() const override { return backend_->sampled_ids(); }
  void patch_embed(const ops::Tensor& pixels, const WeightMatrix& weight, const ops::Tensor& out) override {
    timed("patch_embed", bytes_of(pixels) + stored(weight), 2 * static_cast<double>(out.rows) * elements(weight),
          [&] { backend_->patch_embed(pixels, weight, out); });
  }
  void vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                           const ops::Tensor& table) override {
    timed("vision_rotary_table", 0, 0, [&] { backend_->vision_rotary_table(positions, inv_freq, table); });
  }
  void layer_norm(const ops::Tensor& residual, const ops::Tensor& delta, const ops::LayerNormWeight& norm,
                  const ops::Tensor& normed) override {
    const double bytes = bytes_of(residual) + (delta.empty() ? 0 : bytes_of(delta));
    timed("layer_norm", bytes, 0, [&] { backend_->layer_norm(residual, delta, norm, normed); });
  }
  void linear_bias(const ops::Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                   const ops::Tensor& out) override {
    double bytes = bytes_of(x);
    double operations = 0;
    for (const WeightMatrix& weight : weights) {
      bytes += stored(weight);
      operations += 2 * static_cast<double>(x.rows) * elements(weight);
    }
    timed(fmt::format("linear_bias [{}, {}]", out.columns, x.columns), bytes, operations,
          [&] { backend_->linear_bias(x, weights, bias, out); });
  }
  void vision_qkv_finish(const ops::VisionHeads& args, const ops::Tensor& packed, const ops::Tensor& table) override {
    timed("vision_qkv_finish", bytes_of(packed), 0, [&] { backend_->vision_qkv_finish(args, packed, table); });
  }
  void attend_segments(const ops::VisionHeads& args, const ops::Tensor& packed,
                       std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                       const ops::Tensor& out) override {
    double keys = 0;  // that the rows see
    for (std::size_t s = 0; s + 1 < segment_begin.size(); ++s) {
      const std::int64_t begin = std::max<std::int64_t>(segment_begin[s], first_row);
      const std::int64_t end = std::min<std::int64_t>(segment_begin[s + 1], first_row + out.rows);
      keys += static_cast<double>(std::max<std::int64_t>(0, end - begin)) * (segment_begin[s + 1] - segment_begin[s]);
    }
    timed("attend_segments", bytes_of(packed), 4 * keys * args.heads * ops::vision_head_dim,
          [&] { backend_->attend_segments(args, packed, segment_begin, first_row, out); });
  }
  void gelu_mlp(const ops::Tensor& hidden, const ops::GeluMlpWeights& weights, const ops::Tensor& out) override {
    const double operations = 2 * static_cast<double>(hidden.rows) * (elements(weights.fc1) + elements(weights.fc2));
    timed(fmt::format("gelu_mlp [{}, {}, {}]", weights.fc2.rows, weights.fc1.rows, weights.fc1.columns),
          bytes_of(hidden) + stored(weights.fc1) + stored(weights.fc2), operations,
          [&] { backend_->gelu_mlp(hidden, weights, out); });
  }
  void copy_pages(const ops::PagePart& part, std::span<const std::int32_t> from,
                  std::span<const std::int32_t> to) override {
    timed("copy_pages", static_cast<double>(from.size()) * static_cast<double>(part.page_bytes), 0,
          [&] { backend_->copy_pages(part, from, to); });
  }

 private:
  double now() {
    backend_->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // A pass that nobody looks at may hide its batch from the host.
  Keys keys_of(const ops::Batch& batch, std::int64_t most) const {
    return profile_.enabled ? count_keys(batch, most) : Keys{};
  }

  template <typename Call>
  void timed(const std::string& operation, double bytes, double operations, const Call& call) {
    if (!profile_.enabled) return call();
    if (marking_) {
      call();
      backend_->mark();
      marked_.push_back({operation, bytes, operations});
      return;
    }
    const double start = now();
    call();
    profile_.add(operation, now() - start, bytes, operations);
  }

  template <typename Call>
  void attend(const char* operation, const ops::Batch& batch, const ops::Attention& args, std::int64_t most,
              const ops::LayerPages& pages, const Call& call) {
    const Keys keys = keys_of(batch, most);
    timed(operation, keys.of_sequences * args.kv_heads * (key_bytes(pages.k) + key_bytes(pages.v)),
          4 * keys.of_tokens * args.query_heads * ops::head_dim, call);
  }

  double different_experts(const ops::Routing& routing, std::int64_t rows, int first, int count) const {
    const auto choices = static_cast<double>(rows * routing.experts_per_token);
    if (!backend_->has_host_memory()) return count * (1 - std::pow(1 - 1.0 / count, choices));
    std::set<std::int32_t> chosen;
    for (std::int64_t i = 0; i < rows * routing.experts_per_token; ++i) {
      const std::int32_t expert = routing.expert_ids[i] - first;
      if (expert >= 0 && expert < count) chosen.insert(expert);
    }
    return static_cast<double>(chosen.size());
  }

  // An operation of a pass, whose time the device tells at its end.
  struct Marked {
    std::string operation;
    double bytes, operations;
  };

  std::unique_ptr<ops::Backend> backend_;
  Profile& profile_;
  bool marking_ = false;
  std::vector<Marked> marked_;
};

}  // namespace

void Profile::add(const std::string& operation, double seconds, double bytes, double operations) {
  auto entry = std::ranges::find(entries_, operation, &Entry::operation);
  if (entry == entries_.end()) entry = entries_.insert(entry, Entry{.operation = operation});
  ++entry->calls;
  entry->seconds += seconds;
  entry->bytes += bytes;
  entry->operations += operations;
}

std::unique_ptr<ops::Backend> make_profiled(std::unique_ptr<ops::Backend> backend, Profile& profile) {
  return std::make_unique<ProfiledBackend>(std::move(backend), profile);
}

}  // namespace m3::engine
