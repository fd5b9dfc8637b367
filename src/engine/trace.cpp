#include "src/engine/trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "src/base/error.h"
#include "src/engine/pictures.h"
#include "src/ops/readback.h"

namespace m3::engine {

namespace {

// Row `row` of an activation tensor as fp32.
void copy_row(const ops::Tensor& tensor, std::int64_t row, float* out) {
  const std::byte* data = tensor.row(row);
  if (tensor.dtype == DType::f32) {
    std::memcpy(out, data, static_cast<std::size_t>(tensor.columns) * sizeof(float));
    return;
  }
  if (tensor.dtype != DType::bf16) fail_internal("trace of {} activations", dtype_name(tensor.dtype));
  for (std::int64_t column = 0; column < tensor.columns; ++column) {
    bf16 value;
    std::memcpy(&value, data + column * 2, sizeof(value));
    out[column] = to_float(value);
  }
}

// The tensors asked for, with families resolved. Unknown names are an error.
std::set<std::string> resolve_names(const ModelConfig& config, const std::vector<std::string>& asked) {
  const std::vector<std::string> known = trace_tensor_names(config);
  std::set<std::string> chosen;
  for (const std::string& name : asked) {
    const std::size_t before = chosen.size();
    for (const std::string& candidate : known) {
      if (candidate == name || candidate.starts_with(name + ".")) chosen.insert(candidate);
    }
    const bool valid_family = name == "block_ids" || name == "expert_ids" || name == "expert_weights";
    if (chosen.size() == before && !valid_family && !chosen.contains(name)) {
      fail_usage(
          "--tensors {}: known are logits, final_norm, hidden or hidden.0 … hidden.{}, block_ids, expert_ids, "
          "expert_weights, each of these also for one layer as in block_ids.{}",
          name, config.num_hidden_layers, config.num_hidden_layers - 1);
    }
  }
  return chosen;
}

class Recorder {
 public:
  Recorder(LoadedModel& model, const TraceOptions& options, std::vector<std::int64_t> positions)
      : backend_(model.backend()),
        config_(model.config()),
        positions_(std::move(positions)),
        names_(resolve_names(config_, options.tensors)) {
    const auto count = static_cast<std::int64_t>(positions_.size());
    const auto add = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
      if (!names_.contains(name)) return;
      std::size_t bytes = dtype_size(dtype);
      for (const std::int64_t dimension : shape) bytes *= static_cast<std::size_t>(dimension);
      trace_[name] = {dtype, std::move(shape), std::vector<std::byte>(bytes)};
    };
    add("logits", DType::f32, {count, config_.vocab_size});
    add("final_norm", DType::f32, {count, config_.hidden_size});
    for (int i = 0; i <= config_.num_hidden_layers; ++i) {
      add(fmt::format("hidden.{}", i), DType::f32, {count, config_.hidden_size});
    }
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      add(fmt::format("block_ids.{}", layer), DType::i32, {count, config_.num_key_value_heads, config_.topk_blocks});
      add(fmt::format("expert_ids.{}", layer), DType::i32, {count, config_.num_experts_per_tok});
      add(fmt::format("expert_weights.{}", layer), DType::f32, {count, config_.num_experts_per_tok});
    }
  }

  // Functions that copy the asked rows of a forward pass over positions [first, first + tokens).
  model::ForwardTaps taps() {
    model::ForwardTaps taps;
    for (int i = 0; i <= config_.num_hidden_layers; ++i) {
      if (names_.contains(fmt::format("hidden.{}", i))) taps.boundaries.push_back(i);
    }
    taps.on_residual = [this](int boundary, const ops::Tensor& residual) {
      store_rows(fmt::format("hidden.{}", boundary), residual);
    };
    taps.on_final_norm = [this](const ops::Tensor& normed) { store_rows("final_norm", normed); };
    taps.on_block_ids = [this](int layer, const std::int32_t* ids) {
      store(fmt::format("block_ids.{}", layer), ids, config_.num_key_value_heads * config_.topk_blocks);
    };
    taps.on_routing = [this](int layer, const ops::Routing& routing) {
      store(fmt::format("expert_ids.{}", layer), routing.expert_ids, routing.experts_per_token);
      store(fmt::format("expert_weights.{}", layer), routing.expert_weights, routing.experts_per_token);
    };
    return taps;
  }

  void begin_chunk(std::int64_t first, std::int64_t tokens) {
    chunk_first_ = first;
    chunk_tokens_ = tokens;
  }

  // Rows of the current chunk whose logits are asked for, ascending, each once.
  std::vector<std::int32_t> logits_rows() const {
    std::set<std::int32_t> rows;
    if (names_.contains("logits")) {
      for (const std::int64_t position : positions_) {
        if (in_chunk(position)) rows.insert(static_cast<std::int32_t>(position - chunk_first_));
      }
    }
    return {rows.begin(), rows.end()};
  }

  void store_logits(std::span<const std::int32_t> rows, const ops::Tensor& logits) {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (!in_chunk(positions_[i])) continue;
      const auto row = static_cast<std::int32_t>(positions_[i] - chunk_first_);
      const auto found = std::ranges::find(rows, row);
      if (found == rows.end()) continue;
      const auto* source = reinterpret_cast<const float*>(logits.row(found - rows.begin()));
      std::memcpy(trace_.at("logits").bytes.data() + i * static_cast<std::size_t>(logits.columns) * sizeof(float),
                  source, static_cast<std::size_t>(logits.columns) * sizeof(float));
      if (!std::all_of(source, source + logits.columns, [](float value) { return std::isfinite(value); })) {
        fail(
            "the logits at position {} are not finite; the checkpoint's weights or scales are damaged "
            "(m3 inspect --deep looks for the cause)",
            positions_[i]);
      }
    }
  }

  Trace take() { return std::move(trace_); }

 private:
  bool in_chunk(std::int64_t position) const {
    return position >= chunk_first_ && position < chunk_first_ + chunk_tokens_;
  }

  template <typename T>
  void store(const std::string& name, const T* results, std::int64_t columns) {
    const auto found = trace_.find(name);
    if (found == trace_.end()) return;
    const T* rows = ops::read_back(backend_, results, chunk_tokens_ * columns, buffer_);
    const std::size_t row_bytes = static_cast<std::size_t>(columns) * sizeof(T);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (!in_chunk(positions_[i])) continue;
      std::memcpy(found->second.bytes.data() + i * row_bytes, rows + (positions_[i] - chunk_first_) * columns,
                  row_bytes);
    }
  }

  void store_rows(const std::string& name, const ops::Tensor& result) {
    const auto found = trace_.find(name);
    if (found == trace_.end()) return;
    const ops::Tensor tensor = ops::read_back(backend_, result, buffer_);
    auto* out = reinterpret_cast<float*>(found->second.bytes.data());
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (in_chunk(positions_[i]))
        copy_row(tensor, positions_[i] - chunk_first_, out + static_cast<std::int64_t>(i) * tensor.columns);
    }
  }

  ops::Backend& backend_;
  const ModelConfig& config_;
  std::vector<std::byte> buffer_;
  std::vector<std::int64_t> positions_;
  std::set<std::string> names_;
  Trace trace_;
  std::int64_t chunk_first_ = 0;
  std::int64_t chunk_tokens_ = 0;
};

void check_inputs(LoadedModel& model, const TraceOptions& options) {
  const ModelConfig& config = model.config();
  const auto tokens = static_cast<std::int64_t>(options.token_ids.size());
  if (tokens == 0) fail_usage("no token ids: give at least one");
  for (std::size_t i = 0; i < options.token_ids.size(); ++i) {
    if (options.token_ids[i] < 0 || options.token_ids[i] >= config.vocab_size) {
      fail_usage("token id {} at index {} is outside the vocabulary of {}", options.token_ids[i], i, config.vocab_size);
    }
  }
  for (const std::int64_t position : options.positions) {
    if (position < 0 || position >= tokens)
      fail_usage("--positions {}: the {} ids have positions 0 to {}", position, tokens, tokens - 1);
  }
  if (options.greedy < 0 || options.chunk < 0) fail_usage("--greedy and --chunk take numbers from 0");
  if (tokens + options.greedy > model.max_model_len()) {
    fail_usage("{} ids and {} greedy tokens are longer than the context of {}", tokens, options.greedy,
               model.max_model_len());
  }
  const std::int64_t blocks = (tokens + options.greedy + 127) / 128;
  for (const std::int32_t block : options.dropped_blocks) {
    if (block < 0 || block >= blocks) fail_usage("--drop-blocks {}: the context has blocks 0 to {}", block, blocks - 1);
  }
}

}  // namespace

std::vector<std::string> trace_tensor_names(const ModelConfig& config) {
  std::vector<std::string> names = {"logits", "final_norm"};
  for (int i = 0; i <= config.num_hidden_layers; ++i) names.push_back(fmt::format("hidden.{}", i));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerKind& kind = config.layers[static_cast<std::size_t>(layer)];
    if (kind.sparse_attention) names.push_back(fmt::format("block_ids.{}", layer));
    if (kind.moe) {
      names.push_back(fmt::format("expert_ids.{}", layer));
      names.push_back(fmt::format("expert_weights.{}", layer));
    }
  }
  return names;
}

namespace {

// Features of all media, in the trace as fp32 and in `pictures` in the place of pixels.
TraceTensor trace_features(LoadedModel& model, std::vector<Picture>& pictures) {
  const std::int64_t columns = model.config().hidden_size;
  TraceTensor tensor{DType::f32, {0, columns}, {}};
  for (Picture& picture : pictures) {
    const std::int64_t rows = model.tower()->feature_rows(picture.grid);
    std::vector<float> values;
    if (picture.features) {
      values = *picture.features;
    } else {
      std::vector<std::byte> bytes = model.picture_features(picture.grid, *picture.pixels);
      const ops::Tensor features{model.tower()->feature_dtype(), rows, columns, columns, bytes.data()};
      values.resize(static_cast<std::size_t>(rows * columns));
      for (std::int64_t row = 0; row < rows; ++row) copy_row(features, row, values.data() + row * columns);
    }
    const auto bytes = std::as_bytes(std::span(values));
    tensor.bytes.insert(tensor.bytes.end(), bytes.begin(), bytes.end());
    tensor.shape[0] += rows;
    picture.features = std::make_shared<const std::vector<float>>(std::move(values));
    picture.pixels = nullptr;
  }
  return tensor;
}

}  // namespace

Trace trace(LoadedModel& model, const TraceOptions& options) {
  std::vector<Picture> pictures = check_pictures(options.media, model);
  Trace result;
  if (!pictures.empty()) result["features"] = trace_features(model, pictures);
  if (options.token_ids.empty() && !pictures.empty()) return result;
  check_inputs(model, options);
  place_pictures(options.token_ids, model, pictures);
  PictureEncoder encoder(model, 0);
  std::vector<model::FeatureRun> features;
  const auto row_bytes =
      model.config().hidden_size * static_cast<std::int64_t>(dtype_size(model.backend().activation_dtype()));
  const auto tokens = static_cast<std::int64_t>(options.token_ids.size());
  std::vector<std::int64_t> positions = options.positions;
  if (positions.empty()) positions.push_back(tokens - 1);
  if (options.shuffle_pages) model.pages().shuffle_free_pages(options.shuffle_seed);

  Recorder recorder(model, options, positions);
  const model::ForwardTaps taps = recorder.taps();
  const model::ForwardOptions forward{.dropped_blocks = options.dropped_blocks};
  kv::SequencePages sequence(model.pages());
  model::RaggedBatch batch;
  const std::int64_t chunk =
      options.chunk > 0 ? std::min(options.chunk, model.max_batched_tokens()) : model.max_batched_tokens();
  std::vector<std::byte> buffer;
  std::vector<float> last_logits;  // of the newest token, where greedy tokens follow

  const auto run = [&](std::span<const std::int32_t> ids, std::vector<std::int32_t> rows,
                       const model::ForwardTaps& use) {
    const std::int64_t first = sequence.length();
    if (!sequence.extend(static_cast<std::int64_t>(ids.size()))) fail_internal("trace: the pool ran out of pages");
    batch.clear();
    features.clear();
    encoder.look_up({&pictures, first});
    encoder.collect(pictures, first, static_cast<std::int64_t>(ids.size()), features);
    batch.add(ids, first, sequence.pages(), features, row_bytes);
    return ops::read_back(model.backend(), model.forward(batch, rows, use, forward), buffer);
  };
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    recorder.begin_chunk(first, count);
    std::vector<std::int32_t> rows = recorder.logits_rows();
    const bool last = first + count == tokens;
    const auto last_row = static_cast<std::int32_t>(count - 1);
    if (last && options.greedy > 0 && (rows.empty() || rows.back() != last_row)) rows.push_back(last_row);
    const std::span<const std::int32_t> ids(options.token_ids.data() + first, static_cast<std::size_t>(count));
    const ops::Tensor logits = run(ids, rows, taps);
    recorder.store_logits(rows, logits);
    if (last && options.greedy > 0) {
      const auto* source = reinterpret_cast<const float*>(logits.row(logits.rows - 1));
      last_logits.assign(source, source + logits.columns);
    }
  }
  result.merge(recorder.take());
  if (options.greedy == 0) return result;

  const std::int64_t vocab = model.config().vocab_size;
  TraceTensor ids{DType::i32, {options.greedy}, std::vector<std::byte>(static_cast<std::size_t>(options.greedy) * 4)};
  TraceTensor logits{DType::f32,
                     {options.greedy, vocab},
                     std::vector<std::byte>(static_cast<std::size_t>(options.greedy * vocab) * 4)};
  for (std::int64_t step = 0; step < options.greedy; ++step) {
    std::memcpy(logits.bytes.data() + static_cast<std::size_t>(step * vocab) * 4, last_logits.data(),
                static_cast<std::size_t>(vocab) * 4);
    const auto next = static_cast<std::int32_t>(std::ranges::max_element(last_logits) - last_logits.begin());
    std::memcpy(ids.bytes.data() + step * 4, &next, 4);
    if (step + 1 == options.greedy) break;
    const ops::Tensor row = run({&next, 1}, {0}, {});
    const auto* source = reinterpret_cast<const float*>(row.row(0));
    last_logits.assign(source, source + vocab);
  }
  result["greedy_ids"] = std::move(ids);
  result["greedy_logits"] = std::move(logits);
  return result;
}

}  // namespace m3::engine
