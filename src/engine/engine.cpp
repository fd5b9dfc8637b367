// Loading an engine, and waiting for one reply.
#include "m3/engine.h"

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/engine/local_engine.h"

namespace m3 {

std::unique_ptr<Engine> Engine::load(const EngineOptions& options, const LoadProgress& progress) {
  const auto report = [&](std::string_view what, std::int64_t done) {
    if (progress) progress(what, done, 3);
  };
  report("validating the checkpoint", 0);
  Checkpoint checkpoint = Checkpoint::open(options.checkpoint, {options.quantization, options.quantization_exclude});
  report("reading the tokenizer", 1);
  Tokenizer tokenizer = Tokenizer::load(options.checkpoint);
  GenerationConfig defaults = read_generation_config(options.checkpoint);
  for (const std::string& key : defaults.without_effect) {
    write_error(fmt::format("m3: note: generation_config.json: {} is not implemented and has no effect\n", key));
  }
  if (tokenizer.vocab_size() > checkpoint.config().vocab_size) {
    fail("tokenizer.json has ids up to {} but the model's vocabulary has {}; the two files do not belong together",
         tokenizer.vocab_size() - 1, checkpoint.config().vocab_size);
  }
  report("planning memory", 2);
  const std::int64_t sequences = engine::running_limit(options.max_num_seqs, options.max_num_batched_tokens);
  engine::LoadedModelOptions model_options = engine::loaded_model_options(options);
  model_options.cache_bytes = options.cache_bytes;
  model_options.max_batched_tokens = options.max_num_batched_tokens;
  model_options.max_sequences = sequences;
  model_options.max_logits_rows = engine::logits_rows(options.max_num_seqs, options.max_num_batched_tokens);
  model_options.wanted_contexts = sequences;
  const std::int64_t patches = options.max_picture_patches;
  if (patches != 0 && (patches < 4 || patches > std::int64_t{1} << 24))
    fail_usage("--max-picture-patches {}: give a number from 4 to {}", patches, 1 << 24);
  if (options.feature_cache_bytes < 0)
    fail_usage("a cache of {} bytes of features: give a number from 0", options.feature_cache_bytes);
  model_options.vision_patches = patches == 0 ? engine::vision_patches_by_backend : patches;
  model_options.feature_cache_bytes = options.feature_cache_bytes;
  model_options.other_picture_bytes = options.other_picture_bytes;
  auto model = std::make_shared<engine::LoadedModel>(std::move(checkpoint), model_options);
  report("ready", 3);
  return std::make_unique<engine::LocalEngine>(
      std::move(model), std::move(tokenizer), std::move(defaults),
      engine::LocalEngineOptions{.max_num_seqs = options.max_num_seqs,
                                 .max_queued_requests = options.max_queued_requests,
                                 .enable_prefix_caching = options.enable_prefix_caching,
                                 .feature_cache_bytes = options.feature_cache_bytes,
                                 .picture_piece = 0,
                                 .before_step = {}});
}

namespace {

// Carries events from the engine's thread to the caller's; shared, so that it outlives whichever ends first.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::list<Event> events;
};

}  // namespace

void generate(Engine& engine, Request request, const EventSink& sink, const std::function<bool()>& stop) {
  const auto mailbox = std::make_shared<Mailbox>();
  int open = request.samples;
  const RequestId id = engine.submit(std::move(request), [mailbox](const Event& event) {
    const std::lock_guard lock(mailbox->mutex);
    mailbox->events.push_back(event);
    mailbox->arrived.notify_one();
  });
  bool cancelled = false;
  try {
    while (open > 0) {
      std::list<Event> batch;
      {
        std::unique_lock lock(mailbox->mutex);
        mailbox->arrived.wait_for(lock, std::chrono::milliseconds(50), [&] { return !mailbox->events.empty(); });
        batch.swap(mailbox->events);
      }
      if (!cancelled && stop && stop()) {
        engine.cancel(id);
        cancelled = true;
      }
      for (const Event& event : batch) {
        sink(event);
        if (event.finish != FinishReason::none) --open;
      }
    }
  } catch (...) {
    engine.cancel(id);  // nobody reads what would still come
    throw;
  }
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "";
}

std::string_view version() { return M3_VERSION; }

}  // namespace m3
