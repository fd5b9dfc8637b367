// The engine: load a checkpoint, submit requests, receive events. Thread-safe after load().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "m3/error.h"
#include "m3/request.h"

namespace m3 {

struct EngineOptions {
  std::string checkpoint;                  // a directory in the published layout
  std::string device = "auto";             // "auto", "cpu", or "scalar" (the slow, exact judge)
  int threads = 0;                         // 0: one for each physical core
  std::int64_t max_model_len = 0;          // longest context in tokens; 0: what positions and memory allow
  std::int64_t cache_bytes = 0;            // memory for K, V and index-K; 0: what max_model_len needs
  std::string kv_cache_dtype = "bf16";     // "bf16" or "fp8" (e4m3)
  std::string index_cache_dtype = "bf16";  // "bf16" or "fp8"
  std::string quantization;                // "" or "ptpc_fp8"
  std::vector<std::string> quantization_exclude;
  std::int64_t max_num_batched_tokens = 512;  // tokens of one step
  bool deterministic = false;                 // cpu and scalar always are
};

// Called while loading: what is being done, and how far (done of total, in bytes or items).
using LoadProgress = std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

struct ModelInfo {
  std::string name;  // the checkpoint's folder name
  std::int64_t max_model_len = 0;
  std::int64_t vocab_size = 0;
  std::int64_t weight_bytes = 0;         // of the text model, as stored
  std::int64_t active_weight_bytes = 0;  // read for one decoded token at batch 1
  std::int64_t cache_token_bytes = 0;    // of one token in the cache
  std::int64_t cache_pages = 0;          // of 128 tokens
  std::string backend;                   // "cpu (AVX2, 2 threads)"
  std::vector<TokenId> end_ids;          // tokens that end a reply
};

struct Statistics {
  std::int64_t running = 0, waiting = 0;
  std::int64_t pages_used = 0, pages_total = 0;
  std::int64_t prompt_tokens = 0, generated_tokens = 0;  // since load
  double prefill_seconds = 0, decode_seconds = 0;        // time spent in steps of each kind
};

class Engine {
 public:
  // Validates the checkpoint, plans memory, starts the engine thread. Errors: m3::Error, one line; a context that
  // does not fit names the largest that would.
  static std::unique_ptr<Engine> load(const EngineOptions& options, const LoadProgress& progress = {});
  virtual ~Engine() = default;  // cancels what still runs

  virtual const ModelInfo& info() const = 0;

  // Checks the request, queues it, and returns at once. Errors (usage): a parameter out of range, an empty prompt, an
  // id outside the vocabulary, a prompt longer than the context; nothing is queued then.
  // The last event of each sample carries a finish reason.
  virtual RequestId submit(Request request, EventSink sink) = 0;
  // Ends a request at the next step boundary with FinishReason::cancelled; unknown or finished ids are ignored.
  virtual void cancel(RequestId id) = 0;
  virtual Statistics statistics() const = 0;

  // Tokenizer. encode: special tokens are recognised in the text only where asked.
  virtual std::vector<TokenId> encode(std::string_view text, bool parse_special) const = 0;
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special) const = 0;
};

// Submits and waits: calls `sink` (on the caller's thread) for every event until the last sample has finished.
// `stop` is polled; when it turns true the request is cancelled.
void generate(Engine& engine, Request request, const EventSink& sink, const std::function<bool()>& stop = {});

// "0.1.0"
std::string_view version();

}  // namespace m3
