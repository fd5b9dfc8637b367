// What a caller asks for, and what comes back: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace m3 {

using TokenId = std::int32_t;
using RequestId = std::uint64_t;

// A parameter that is accepted acts. Values left empty come from the checkpoint's generation_config.json, else from
// the neutral value named here. Ranges are checked at submit().
struct SamplingParameters {
  std::optional<float> temperature;         // 0 … 2; neutral 1; 0 takes the most probable token
  std::optional<int> top_k;                 // 0 or -1 = all
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> repetition_penalty;  // (0, 10]; neutral 1; over prompt and output
  float presence_penalty = 0;               // -2 … 2; over output
  float frequency_penalty = 0;              // -2 … 2; over output
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<std::vector<TokenId>>
      banned;                         // a reply never holds such a run: its last id is not drawn behind the others
  std::vector<TokenId> allowed_ids;   // where given, no other id is drawn, end tokens included
  std::optional<std::uint64_t> seed;  // the same seed gives the same tokens whatever else runs; empty: drawn
};

// What a reply must match from its first answer token on (after the reasoning, where `Request::reasoning` has one) until
// it ends. What cannot be read or enforced is refused at submit(); what costs too much to compile ends with an error
// event that says `refused`, before anything was generated.
struct Constraint {
  enum class Kind : std::uint8_t {
    none,
    json_object,  // any JSON object
    json_schema,  // `text` is a JSON Schema
    regex,        // `text` is a regular expression (ECMAScript)
    grammar,      // `text` is an EBNF grammar in GBNF's notation, with a rule `root`
    choice,       // one of `choices`, exactly
  };
  Kind kind = Kind::none;
  std::string text;
  std::vector<std::string> choices;
  std::string name = "the constraint";  // how errors call it
};

// Which of a reply's tokens are reasoning. Ids of -1: the model has none.
struct Reasoning {
  enum class Start : std::uint8_t {
    outside,  // no reasoning
    inside,   // the prompt ends inside it
    either,   // the reply's first token decides: begin_id opens it
  };
  Start start = Start::outside;
  TokenId begin_id = -1;
  TokenId end_id = -1;
  std::optional<std::int64_t> budget;  // after so many reasoning tokens end_id is forced
};

// A picture or a clip, decoded, resized and cut into patches.
struct Media {
  enum class Kind : std::uint8_t { image, video };
  Kind kind = Kind::image;
  std::int64_t t = 1, h = 0, w = 0;  // patches: temporal groups (of two frames), rows, columns; h and w even
  // [t·h·w, 3·2·14·14]: normalised values, patches in the order in which four make a token. Shared, not copied.
  std::shared_ptr<const std::vector<float>> pixels;
  // Instead of pixels: [t·h·w / 4, hidden], what the vision tower would give.
  std::shared_ptr<const std::vector<float>> features;
  // Names the content and all that decided the values; empty: a hash of them. Equal keys are taken as equal values.
  std::string key;
};

struct Request {
  // The prompt: ids win over text where both are given. Text is encoded without special tokens being recognised
  // unless `parse_special`.
  std::vector<TokenId> prompt_ids;
  std::string prompt;
  bool parse_special = false;
  // The k-th image placeholder of the prompt stands for the k-th feature row of the images, in this order, and likewise
  // for videos; t·h·w / 4 placeholders each, no more and no fewer in all.
  std::vector<Media> media;

  SamplingParameters sampling;
  int samples = 1;                         // n independent continuations
  std::optional<std::int64_t> max_tokens;  // per sample; empty: what the context leaves
  std::int64_t min_tokens = 0;             // end tokens and stops are masked or ignored before
  std::vector<std::string> stop;           // the text ends before the first of these
  std::vector<TokenId> stop_ids;           // besides the checkpoint's end tokens
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  bool skip_special = true;  // special tokens are left out of the text
  Constraint constraint;
  Reasoning reasoning;
  int logprobs = -1;         // -1 none; else the chosen token's and the n most probable ones'
  int prompt_logprobs = -1;  // likewise of the prompt's tokens, in the first event
  int priority = 0;          // lower runs first
  std::string cache_salt;    // requests share cached prefixes only under the same salt
};

struct TokenLogprob {
  TokenId id = -1;
  float logprob = 0;  // log-softmax of the raw logits, before penalties, temperature and filters
};

enum class FinishReason : std::uint8_t {
  none,
  stop,       // an end token, a stop id or a stop string
  length,     // max_tokens or the context is full
  cancelled,  // by cancel() or shutdown
  error,      // Event::error says what
};

const char* finish_reason_name(FinishReason reason);

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;     // of the prompt, taken from the prefix cache
  std::int64_t reasoning_tokens = 0;  // of the completion, the tags among them
};

// One step of one sample. Text is whole UTF-8: bytes of an unfinished character wait for the next event.
struct Event {
  RequestId request = 0;
  int sample = 0;
  std::vector<TokenId> ids;                             // new tokens; empty in an event that only finishes
  std::string text;                                     // what became certain with them (stop strings held back)
  std::vector<TokenLogprob> logprobs;                   // of `ids`, where asked
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // by id, descending, where asked
  // In a request's first event, where asked: by prompt position; the first has none (id -1, an empty list).
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> prompt_top_logprobs;
  FinishReason finish = FinishReason::none;
  std::string stop_reason;    // the stop string or the name of the end token that ended it
  std::string error;          // one line, with FinishReason::error
  bool refused = false;       // with an error: the fault is the request's, which asks for what cannot be done
  Usage usage;                // so far, of this sample
  double queue_seconds = -1;  // from submit() to the request's first step; -1: it never began
};

// Called on the engine's thread, in order for each request; must not block.
using EventSink = std::function<void(const Event&)>;

}  // namespace m3
