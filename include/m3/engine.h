// The engine: load a checkpoint, submit requests, receive events. Thread-safe after load().
#pragma once

#include <array>
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
  std::string checkpoint;          // a directory in the published layout
  std::string device = "auto";     // "cuda", "cpu", "scalar" (the slow, exact judge); "auto" picks
  int threads = 0;                 // 0: one for each physical core
  std::int64_t max_model_len = 0;  // longest context in tokens; 0: what positions and memory allow
  std::int64_t cache_bytes = 0;    // memory for K, V and index-K; 0: what memory_utilization leaves for it
  // A share in (0, 1] of the memory available at start, for cache and working memory; on a device of all its memory, the
  // weights included.
  double memory_utilization = 0.9;
  std::string kv_cache_dtype = "bf16";     // "bf16" or "fp8" (e4m3)
  std::string index_cache_dtype = "bf16";  // "bf16" or "fp8"
  std::string quantization;                // "" or "ptpc_fp8"
  std::vector<std::string> quantization_exclude;
  // Tokens of one step; 0: 512 on a processor, 8192 on a GPU, 2048 on one of less than 64 GiB.
  std::int64_t max_num_batched_tokens = 0;
  std::int64_t max_num_seqs = 64;           // samples that run at the same time; at most one a token of a step
  std::int64_t max_queued_requests = 1024;  // that wait for a place; submit() refuses more with ErrorKind::busy
  bool enable_prefix_caching = true;        // blocks of 128 tokens computed once serve all prompts that begin so
  // Of a picture, or of 4 temporal groups of a clip. 0: 65536, the largest picture there is (3584 × 3584 pixels), on a
  // GPU of less than 64 GiB 20736 (2016 × 2016).
  std::int64_t max_picture_patches = 0;
  std::int64_t feature_cache_bytes = std::int64_t{256} << 20;  // features of pictures seen lately, computed once
  std::int64_t other_picture_bytes =
      0;                       // of the machine's memory, that the caller holds of pictures: left free in the plan
  bool record_passes = true;   // on a device: steps of decoding are recorded once and played again, as CUDA graphs
  bool deterministic = false;  // replies do not depend on other requests, bit for bit; cpu and scalar always are
};

// Called while loading: what is being done, and how far (done of total, in bytes or items).
using LoadProgress = std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

// What a caller must know to make Request::media.
struct MediaInfo {
  std::string unavailable = "no model is loaded";  // why requests may carry none, as one line; empty: they may
  TokenId image_id = -1, video_id = -1;            // placeholders; -1: the model has none for this kind
  int patch_size = 14;                             // pixels of a side
  int temporal_patch_size = 2;                     // frames of a temporal group
  int merge_size = 2;                              // patches of a side of what becomes one token
  int segment_groups = 4;                          // temporal groups that attend to each other
  std::int64_t max_patches = 0;                    // that do, at most
};

struct ModelInfo {
  std::string name;  // the checkpoint's folder name
  std::int64_t max_model_len = 0;
  std::int64_t vocab_size = 0;
  std::int64_t weight_bytes = 0;         // of the text model, as stored
  std::int64_t active_weight_bytes = 0;  // read for one decoded token at batch 1
  std::int64_t cache_token_bytes = 0;    // of one token in the cache
  std::int64_t cache_pages = 0;          // of 128 tokens
  std::int64_t cache_tokens = 0;         // in all pages
  double max_concurrency = 0;            // requests of max_model_len tokens that fit at the same time
  std::int64_t max_num_seqs = 0;         // samples that run at the same time
  std::string device;                    // "cuda", "cpu" or "scalar"
  std::string backend;                   // "cpu (AVX2, 2 threads)"
  std::vector<TokenId> end_ids;          // tokens that end a reply
  MediaInfo media;
};

// Totals are since load. When a sample's last event is seen, its pages are free and its counts are in here.
struct Statistics {
  std::int64_t running = 0, waiting = 0;         // requests
  std::int64_t pages_used = 0, pages_total = 0;  // used: held by running requests
  std::int64_t pages_cached = 0;                 // held by the prefix cache alone; given up when pages are needed
  std::int64_t prompt_tokens = 0;                // of prompts that were begun, cached ones included
  std::int64_t prefilled_tokens = 0;             // of prompts computed, and of replies computed again
  std::int64_t generated_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;    // steps, shared out by their tokens of each kind
  std::int64_t prefix_queries = 0, prefix_hits = 0;  // prompt tokens looked up in, and taken from, the prefix cache
  std::int64_t preemptions = 0;
  std::int64_t media_encoded = 0, media_reused = 0;  // by the vision tower; taken from its cache of features
  std::int64_t media_pieces = 0;                     // of the tower's work, between which steps run
  std::int64_t media_given_up = 0;                   // begun, and not needed any more
  std::int64_t steps = 0;
  std::int64_t step_sequences = 0, step_tokens = 0;  // sums over the steps
  std::array<std::int64_t, 16> step_sizes = {};  // steps of at most 2^i tokens, beyond 2^(i-1); the last: all beyond
  double step_seconds = 0;
  double scheduler_seconds = 0;               // of these, outside the model's and the sampler's operations
  std::array<std::int64_t, 5> finished = {};  // samples by FinishReason
};

class Engine {
 public:
  // Validates the checkpoint, plans memory, starts the engine thread. Errors: m3::Error, one line; a context that
  // does not fit names the largest that would.
  static std::unique_ptr<Engine> load(const EngineOptions& options, const LoadProgress& progress = {});
  virtual ~Engine() = default;  // cancels what still runs

  virtual const ModelInfo& info() const = 0;

  // Checks the request, queues it, and returns at once. Errors (usage): a parameter out of range, an empty prompt, an
  // id outside the vocabulary, a prompt longer than the context; (busy): the queue is full; (internal): the engine is
  // not healthy. Nothing is queued then.
  // The last event of each sample carries a finish reason.
  virtual RequestId submit(Request request, EventSink sink) = 0;
  // Ends a request at the next step boundary with FinishReason::cancelled; unknown or finished ids are ignored.
  virtual void cancel(RequestId id) = 0;
  virtual Statistics statistics() const = 0;
  // False once the engine's thread has failed: every request got an error, and submit() refuses.
  virtual bool healthy() const = 0;
  // No request submitted from now on takes anything that was computed before.
  virtual void reset_prefix_cache() = 0;

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
