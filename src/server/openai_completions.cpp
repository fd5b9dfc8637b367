// POST /v1/completions.
#include <ctime>

#include "src/server/chat_sample.h"
#include "src/server/completion_call.h"
#include "src/server/generation.h"
#include "src/server/logprobs.h"
#include "src/server/request_id.h"
#include "src/server/routes.h"
#include "src/server/sse.h"
#include "src/server/usage.h"

namespace m3::server {
namespace {

// One choice: a sample of a prompt. In a stream, text, entries and ids are what no chunk has taken yet.
struct Choice {
  std::string text;
  CompletionLogprobs logprobs;
  Json prompt_logprobs;
  std::vector<TokenId> ids;
  std::int64_t completion_tokens = 0;
  std::string finish_reason;
  Json stop_reason;
  bool started = false;
  bool said_prompt = false;
};

class CompletionWriter : public ReplyWriter {
 public:
  CompletionWriter(const Server& server, std::shared_ptr<Exchange> exchange, CompletionCall call)
      : server_(server),
        exchange_(std::move(exchange)),
        call_(std::move(call)),
        samples_(static_cast<std::size_t>(call_.request.samples)),
        id_("cmpl-" + random_id()),
        created_(std::time(nullptr)),
        choices_(call_.prompts.size() * samples_),
        prompt_events_(call_.prompts.size()),
        prompt_usage_(call_.prompts.size()) {}

 protected:
  Choice& take(std::size_t prompt, const Event& event) {
    Choice& choice = choices_[prompt * samples_ + static_cast<std::size_t>(event.sample)];
    const Tokenizer& tokenizer = server_.tokenizer();
    // They come with a request's first event and are every sample's.
    if (!event.prompt_logprobs.empty()) prompt_events_[prompt] = event;
    if (!choice.started && call_.echo) {
      choice.text = call_.texts[prompt];
      if (call_.logprobs >= 0) {
        choice.logprobs.add_prompt(tokenizer, call_.prompts[prompt], prompt_events_[prompt], call_.tokens_as_ids,
                                   call_.logprobs);
      }
    }
    if (!choice.started && call_.prompt_logprobs) {
      choice.prompt_logprobs = prompt_logprobs_json(tokenizer, prompt_events_[prompt]);
    }
    choice.started = true;
    note_usage(prompt, choice, event.usage);
    if (!call_.only_echo) {
      choice.text += event.text;
      choice.ids.insert(choice.ids.end(), event.ids.begin(), event.ids.end());
      if (call_.logprobs >= 0) choice.logprobs.add(tokenizer, event, call_.tokens_as_ids);
    }
    if (event.finish != FinishReason::none) {
      choice.finish_reason = call_.only_echo                           ? "length"
                             : event.finish == FinishReason::cancelled ? "abort"
                             : event.finish == FinishReason::length    ? "length"
                                                                       : "stop";
      choice.stop_reason = call_.only_echo ? Json() : stop_reason_of(call_.request, event);
    }
    return choice;
  }

  Json head() const {
    return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", call_.model}};
  }

  // Takes what has come of a choice out of it.
  Json choice_json(std::size_t index) {
    Choice& choice = choices_[index];
    Json out = {{"index", index}, {"text", std::exchange(choice.text, {})}, {"logprobs", nullptr}};
    if (call_.logprobs >= 0) out["logprobs"] = choice.logprobs.take();
    out["finish_reason"] = choice.finish_reason.empty() ? Json() : Json(choice.finish_reason);
    out["stop_reason"] = choice.stop_reason;
    if (call_.prompt_logprobs) out["prompt_logprobs"] = std::exchange(choice.prompt_logprobs, Json());
    if (call_.return_token_ids) {
      out["token_ids"] = std::exchange(choice.ids, {});
      // A stream says them once.
      if (!std::exchange(choice.said_prompt, true)) {
        out["prompt_token_ids"] = call_.prompts[index / samples_];
      }
    }
    return out;
  }

  Json usage() const { return usage_json(usage_); }

  std::size_t index_of(std::size_t prompt, const Event& event) const {
    return prompt * samples_ + static_cast<std::size_t>(event.sample);
  }

  const Server& server_;
  std::shared_ptr<Exchange> exchange_;
  CompletionCall call_;
  std::size_t samples_;
  std::string id_;
  std::time_t created_;
  std::vector<Choice> choices_;
  std::vector<Event> prompt_events_;

 private:
  // Adds what is new to the sum: a stream may say it with every chunk, and a list of prompts is long.
  void note_usage(std::size_t prompt, Choice& choice, const Usage& now) {
    Usage& shared = prompt_usage_[prompt];  // by the samples of a prompt
    usage_.prompt_tokens += now.prompt_tokens - std::exchange(shared.prompt_tokens, now.prompt_tokens);
    const std::int64_t cached = std::max(shared.cached_tokens, now.cached_tokens);
    usage_.cached_tokens += cached - std::exchange(shared.cached_tokens, cached);
    if (call_.only_echo) return;
    usage_.completion_tokens += now.completion_tokens - std::exchange(choice.completion_tokens, now.completion_tokens);
  }

  std::vector<Usage> prompt_usage_;
  Usage usage_;
};

class WholeCompletion final : public CompletionWriter {
 public:
  using CompletionWriter::CompletionWriter;

  void event(std::size_t prompt, const Event& event, Clock::time_point) override { take(prompt, event); }

  void finish() override {
    Json reply = head();
    reply["choices"] = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) reply["choices"].push_back(choice_json(i));
    reply["usage"] = usage();
    exchange_->send({.body = to_text(reply)});
  }

  void fail(const ApiError& error) override { exchange_->send(error_reply(error, exchange_->request())); }
};

// A chunk for each token: load generators count them.
class StreamedCompletion final : public CompletionWriter {
 public:
  StreamedCompletion(const Server& server, std::shared_ptr<Exchange> exchange, CompletionCall call)
      : CompletionWriter(server, exchange, std::move(call)), stream_(std::move(exchange)) {}

  void begin() override { stream_.begin(); }

  void event(std::size_t prompt, const Event& event, Clock::time_point) override {
    const Choice& choice = take(prompt, event);
    if (choice.text.empty() && choice.finish_reason.empty()) return;  // half a character, or the begin of a stop
    Json chunk = head();
    chunk["choices"] = Json::array({choice_json(index_of(prompt, event))});
    if (call_.continuous_usage) {
      chunk["usage"] = usage();
    } else if (call_.include_usage) {
      chunk["usage"] = nullptr;
    }
    stream_.send(chunk);
  }

  void finish() override {
    if (call_.include_usage) stream_.send(usage_chunk(head(), usage()));
    stream_.done();
  }

  void fail(const ApiError& error) override { stream_.fail(error); }

 private:
  SseStream stream_;
};

}  // namespace

void completions(Server& server, const std::shared_ptr<Exchange>& exchange) {
  CompletionCall call = read_completion_call(server, parse_body(exchange->request()));
  Request request = call.request;
  std::vector<std::vector<TokenId>> prompts = call.prompts;
  std::unique_ptr<ReplyWriter> writer;
  if (call.stream) {
    writer = std::make_unique<StreamedCompletion>(server, exchange, std::move(call));
  } else {
    writer = std::make_unique<WholeCompletion>(server, exchange, std::move(call));
  }
  start_generation(server, exchange, std::move(request), std::move(prompts), std::move(writer));
}

void embeddings(Server&, const std::shared_ptr<Exchange>&) {
  throw ApiError(400, "MiniMax-M3 is a text generator and makes no embeddings; /v1/embeddings is not served", "model",
                 "unsupported_model");
}

}  // namespace m3::server
