#include "tests/support/small_engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>

#include "src/base/error.h"
#include "src/engine/logprobs.h"
#include "src/engine/sampling.h"
#include "src/ops/readback.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_configs.h"
#include "tests/tokenizer/small_tokenizer.h"

namespace m3::test {

namespace {

constexpr std::int64_t vocab = 320;

const Tokenizer& tokenizer() {
  static const Tokenizer small = Tokenizer::parse(m3::testing::small_file().dump(), "test tokenizer");
  return small;
}

}  // namespace

std::shared_ptr<engine::LoadedModel> small_model(const SmallOptions& options) {
  static const TemporaryDirectory plain, seeing;
  static const bool written = [] {
    nlohmann::json config = small_config();
    config["text_config"]["vocab_size"] = vocab;
    write_seeded_checkpoint(plain.path(), config.dump(), 7);
    config["vision_config"] = {{"hidden_size", 160},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 2},
                               {"intermediate_size", 96},
                               {"projection_dim", config["text_config"]["hidden_size"]}};
    config["projector_hidden_size"] = 96;
    config["image_token_index"] = 310;
    config["video_token_index"] = 311;
    write_seeded_checkpoint(seeing.path(), config.dump(), 7);
    return true;
  }();
  static_cast<void>(written);
  engine::LoadedModelOptions load;
  load.device = options.device;
  load.deterministic = true;
  if (options.device == "walled") {
    load.device = "scalar";
    load.wrap = wall(options.counts);
  }
  load.threads = 2;
  load.max_model_len = options.context;
  load.vision_patches = options.vision ? 256 : 0;
  load.vision_blocks = options.vision_blocks;
  load.max_batched_tokens = options.step_tokens;
  load.max_sequences = engine::running_limit(options.sequences, options.step_tokens);
  load.max_logits_rows = engine::logits_rows(options.sequences, options.step_tokens);
  load.wanted_contexts = load.max_sequences;
  constexpr std::int64_t page_bytes = (3 * 2 * 2 + 2) * 128 * 128 * 2;  // K and V of two heads, two layers' index-K
  load.cache_bytes = options.pages * page_bytes;
  auto model = std::make_shared<engine::LoadedModel>(Checkpoint::open((options.vision ? seeing : plain).path()), load);
  if (options.pages > 0 && model->pages().pages() != options.pages)
    fail_internal("{} pages where {} were wanted", model->pages().pages(), options.pages);
  return model;
}

std::unique_ptr<engine::LocalEngine> small_engine(const SmallOptions& options) {
  return std::make_unique<engine::LocalEngine>(
      small_model(options), tokenizer(), GenerationConfig{},
      engine::LocalEngineOptions{.max_num_seqs = options.sequences,
                                 .max_queued_requests = options.queued,
                                 .enable_prefix_caching = options.prefix_cache,
                                 .feature_cache_bytes = options.feature_cache_bytes,
                                 .picture_piece = options.picture_piece,
                                 .before_step = options.before_step});
}

struct Replies::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<std::size_t, int>, Reply> replies;
};

std::shared_ptr<Replies::State> Replies::make() { return std::make_shared<State>(); }

EventSink Replies::sink(std::size_t request) {
  return [state = state_, request](const Event& event) {
    const std::lock_guard lock(state->mutex);
    Reply& reply = state->replies[{request, event.sample}];
    reply.ids.insert(reply.ids.end(), event.ids.begin(), event.ids.end());
    reply.text += event.text;
    reply.logprobs.insert(reply.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    reply.top_logprobs.insert(reply.top_logprobs.end(), event.top_logprobs.begin(), event.top_logprobs.end());
    if (!event.prompt_logprobs.empty()) reply.prompt_logprobs = event.prompt_logprobs;
    if (!event.prompt_top_logprobs.empty()) reply.prompt_top_logprobs = event.prompt_top_logprobs;
    reply.events_after_the_last += reply.finish == FinishReason::none ? 0 : 1;
    reply.finish = event.finish;
    reply.error = event.error;
    reply.refused = event.refused;
    reply.usage = event.usage;
    state->changed.notify_all();
  };
}

void Replies::wait(const std::vector<Request>& requests) const {
  std::unique_lock lock(state_->mutex);
  const auto all_done = [&] {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (int sample = 0; sample < requests[i].samples; ++sample) {
        if (state_->replies[{i, sample}].finish == FinishReason::none) return false;
      }
    }
    return true;
  };
  state_->changed.wait(lock, all_done);  // ctest ends a test that hangs
}

Reply Replies::of(std::size_t request, int sample) const {
  const std::lock_guard lock(state_->mutex);
  return state_->replies[{request, sample}];
}

Replies run_all(Engine& engine, const std::vector<Request>& requests) {
  Replies replies;
  for (std::size_t i = 0; i < requests.size(); ++i) engine.submit(requests[i], replies.sink(i));
  replies.wait(requests);
  return replies;
}

Reply alone(engine::LoadedModel& model, const Request& request, int sample) {
  const engine::Vocabulary vocabulary = engine::make_vocabulary(tokenizer(), {}, model.config().vocab_size);
  Reply reply;
  kv::SequencePages pages(model.pages());
  std::vector<TokenId> ids = request.prompt_ids;
  model::RaggedBatch batch;
  ops::Tensor logits;
  while (static_cast<std::int64_t>(reply.ids.size()) < request.max_tokens.value()) {
    while (pages.length() < static_cast<std::int64_t>(ids.size())) {
      const std::int64_t first = pages.length();
      const std::int64_t count = std::min<std::int64_t>(64, static_cast<std::int64_t>(ids.size()) - first);
      if (!pages.extend(count)) fail("no page for the reply alone");
      batch.clear();
      batch.add(std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), first,
                pages.pages());
      const auto last = static_cast<std::int32_t>(count - 1);
      logits = model.forward(batch, {&last, 1});
    }
    std::vector<std::byte> buffer;
    const ops::Tensor read = ops::read_back(model.backend(), logits, buffer);
    const std::span<const float> row(reinterpret_cast<const float*>(read.data), static_cast<std::size_t>(read.columns));
    const std::vector<float> raw(row.begin(), row.end());
    ops::SamplingRow how = engine::make_sampling_row(request.sampling, {}, request.sampling.seed.value_or(0), {});
    how.sample = static_cast<std::uint32_t>(sample);
    how.position = static_cast<std::int64_t>(ids.size());
    how.prompt_ids = request.prompt_ids;
    how.output_ids = reply.ids;
    how.allowed = vocabulary.allowed;
    TokenId id = -1;
    model.backend().sample(logits, {&how, 1}, {&id, 1});
    if (request.logprobs >= 0) reply.logprobs.push_back(engine::logprob_of(raw, id, engine::log_sum_exp(raw)));
    reply.ids.push_back(id);
    ids.push_back(id);
  }
  return reply;
}

std::vector<TokenId> random_prompt(std::int64_t tokens, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<TokenId>(random() % 256));
  return ids;
}

}  // namespace m3::test
