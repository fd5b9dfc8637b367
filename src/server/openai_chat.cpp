// POST /v1/chat/completions.
#include <ctime>
#include <deque>

#include "src/server/chat_call.h"
#include "src/server/chat_sample.h"
#include "src/server/generation.h"
#include "src/server/logprobs.h"
#include "src/server/media_call.h"
#include "src/server/request_id.h"
#include "src/server/routes.h"
#include "src/server/sse.h"
#include "src/server/usage.h"

namespace m3::server {
namespace {

class ChatWriter : public ReplyWriter {
 public:
  ChatWriter(const Server& server, std::shared_ptr<Exchange> exchange, ChatCall call)
      : server_(server),
        exchange_(std::move(exchange)),
        call_(std::move(call)),
        id_("chatcmpl-" + random_id()),
        created_(std::time(nullptr)) {
    const bool joins = call_.stream && server.options().join_packets;
    for (int i = 0; i < call_.request.samples; ++i) samples_.emplace_back(call_, joins);
    logprobs_.resize(samples_.size(), Json::array());
    token_ids_.resize(samples_.size());
  }

 protected:
  Json head(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", call_.model}};
  }
  void note(const Event& event) {
    const auto i = static_cast<std::size_t>(event.sample);
    if (call_.request.logprobs >= 0) {
      append_chat_logprobs(server_.tokenizer(), event, call_.tokens_as_ids, logprobs_[i]);
    }
    if (call_.return_token_ids) token_ids_[i].insert(token_ids_[i].end(), event.ids.begin(), event.ids.end());
    if (call_.request.prompt_logprobs >= 0 && !event.prompt_logprobs.empty()) {
      prompt_logprobs_ = prompt_logprobs_json(server_.tokenizer(), event);
    }
  }
  Json usage() const {
    UsageSum sum;
    for (const ChatSample& sample : samples_) sum.add(sample.usage());
    return usage_json(sum.total);
  }
  ChatSample& sample(const Event& event) { return samples_[static_cast<std::size_t>(event.sample)]; }

  const Server& server_;
  std::shared_ptr<Exchange> exchange_;
  ChatCall call_;
  std::string id_;
  std::time_t created_;
  std::deque<ChatSample> samples_;
  std::vector<Json> logprobs_;  // by sample; of a stream, what no chunk has taken yet
  std::vector<std::vector<TokenId>> token_ids_;
  Json prompt_logprobs_;
};

class WholeChat final : public ChatWriter {
 public:
  WholeChat(const Server& server, std::shared_ptr<Exchange> exchange, ChatCall call)
      : ChatWriter(server, std::move(exchange), std::move(call)), messages_(samples_.size()) {}

  void event(std::size_t, const Event& event, Clock::time_point now) override {
    note(event);
    Message& message = messages_[static_cast<std::size_t>(event.sample)];
    for (const Delta& delta : sample(event).event(event, now)) {
      switch (delta.kind) {
        case Delta::Kind::content: message.content += delta.text; break;
        case Delta::Kind::reasoning: message.reasoning += delta.text; break;
        case Delta::Kind::call:
          message.calls.push_back(
              {{"id", delta.call_id}, {"type", "function"}, {"function", {{"name", delta.text}, {"arguments", ""}}}});
          break;
        case Delta::Kind::arguments: message.arguments(delta.call) += delta.text; break;
      }
    }
  }

  void finish() override {
    Json reply = head("chat.completion");
    reply["choices"] = Json::array();
    for (std::size_t i = 0; i < messages_.size(); ++i) reply["choices"].push_back(choice(i));
    reply["usage"] = usage();
    if (call_.request.prompt_logprobs >= 0) reply["prompt_logprobs"] = prompt_logprobs_;
    if (call_.return_token_ids) reply["prompt_token_ids"] = call_.request.prompt_ids;
    exchange_->send({.body = to_text(reply)});
  }

  void fail(const ApiError& error) override { exchange_->send(error_reply(error, exchange_->request())); }

 private:
  struct Message {
    std::string content, reasoning;
    std::vector<Json> calls;
    std::string& arguments(int call) {
      return calls.at(static_cast<std::size_t>(call))["function"]["arguments"].get_ref<std::string&>();
    }
  };

  Json choice(std::size_t i) const {
    const Message& given = messages_[i];
    Json message = {{"role", "assistant"}, {"content", nullptr}};
    const std::string content = call_.echo + given.content;
    if (!content.empty() || given.calls.empty()) message["content"] = content;
    if (!given.reasoning.empty()) message["reasoning_content"] = given.reasoning;
    if (!given.calls.empty()) message["tool_calls"] = given.calls;
    Json out = {{"index", i}, {"message", std::move(message)}, {"logprobs", nullptr}};
    if (call_.request.logprobs >= 0) out["logprobs"] = {{"content", logprobs_[i]}};
    out["finish_reason"] = samples_[i].finish_reason();
    out["stop_reason"] = samples_[i].stop_reason();
    if (call_.return_token_ids) out["token_ids"] = token_ids_[i];
    return out;
  }

  std::vector<Message> messages_;
};

class StreamedChat final : public ChatWriter {
 public:
  StreamedChat(const Server& server, std::shared_ptr<Exchange> exchange, ChatCall call)
      : ChatWriter(server, exchange, std::move(call)), stream_(std::move(exchange)) {}

  void begin() override {
    stream_.begin();
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      Json chunk = make_chunk(i, {{"role", "assistant"}, {"content", ""}});
      if (call_.return_token_ids) chunk["prompt_token_ids"] = call_.request.prompt_ids;
      stream_.send(chunk);
      if (!call_.echo.empty()) stream_.send(make_chunk(i, {{"content", call_.echo}}));
    }
  }

  void event(std::size_t, const Event& event, Clock::time_point now) override {
    note(event);
    const auto i = static_cast<std::size_t>(event.sample);
    ChatSample& sample = samples_[i];
    send(i, sample.event(event, now));
    if (sample.finish() == FinishReason::none) return;
    Json chunk = make_chunk(i, Json::object());
    chunk["choices"][0]["finish_reason"] = sample.finish_reason();
    chunk["choices"][0]["stop_reason"] = sample.stop_reason();
    if (call_.request.prompt_logprobs >= 0) chunk["prompt_logprobs"] = prompt_logprobs_;
    stream_.send(chunk);
  }

  std::optional<Clock::time_point> due() const override {
    std::optional<Clock::time_point> first;
    for (const ChatSample& sample : samples_) {
      const auto due = sample.due();
      if (due && (!first || *due < *first)) first = due;
    }
    return first;
  }

  void tick(Clock::time_point now) override {
    for (std::size_t i = 0; i < samples_.size(); ++i) send(i, samples_[i].tick(now));
  }

  void finish() override {
    if (call_.include_usage) stream_.send(usage_chunk(head("chat.completion.chunk"), usage()));
    stream_.done();
  }

  void fail(const ApiError& error) override { stream_.fail(error); }

 private:
  void send(std::size_t i, const std::vector<Delta>& deltas) {
    for (const Delta& delta : deltas) stream_.send(make_chunk(i, delta_json(delta)));
  }

  static Json delta_json(const Delta& delta) {
    switch (delta.kind) {
      case Delta::Kind::content: return {{"content", delta.text}};
      case Delta::Kind::reasoning: return {{"reasoning_content", delta.text}};
      case Delta::Kind::call: {
        const Json call = {{"index", delta.call},
                           {"id", delta.call_id},
                           {"type", "function"},
                           {"function", {{"name", delta.text}, {"arguments", ""}}}};
        return {{"tool_calls", Json::array({call})}};
      }
      case Delta::Kind::arguments: {
        const Json call = {{"index", delta.call}, {"function", {{"arguments", delta.text}}}};
        return {{"tool_calls", Json::array({call})}};
      }
    }
    return {};
  }

  // With the log-probabilities and ids that no chunk has taken yet.
  Json make_chunk(std::size_t i, Json delta) {
    Json choice = {{"index", i}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (!logprobs_[i].empty()) choice["logprobs"] = {{"content", std::exchange(logprobs_[i], Json::array())}};
    if (call_.return_token_ids) choice["token_ids"] = std::exchange(token_ids_[i], {});
    Json chunk = head("chat.completion.chunk");
    chunk["choices"] = Json::array({std::move(choice)});
    if (call_.continuous_usage) {
      chunk["usage"] = usage();
    } else if (call_.include_usage) {
      chunk["usage"] = nullptr;
    }
    return chunk;
  }

  SseStream stream_;
};

}  // namespace

void chat_completions(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const auto call = std::make_shared<ChatCall>(read_chat_call(server, parse_body(exchange->request())));
  auto pictures = std::move(call->pictures);
  with_pictures(server, exchange, std::move(pictures), {}, [&server, exchange, call](const auto& prepared) {
    add_pictures(server.model(), prepared, *call);
    Request request = call->request;
    call->request.media.clear();  // the engine has them
    std::unique_ptr<ReplyWriter> writer;
    if (call->stream) {
      writer = std::make_unique<StreamedChat>(server, exchange, std::move(*call));
    } else {
      writer = std::make_unique<WholeChat>(server, exchange, std::move(*call));
    }
    start_generation(server, exchange, std::move(request), std::move(writer));
  });
}

}  // namespace m3::server
