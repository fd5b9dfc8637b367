// POST /v1/messages and /v1/messages/count_tokens.
#include "src/server/anthropic_request.h"
#include "src/server/api_routes.h"
#include "src/server/chat_call.h"
#include "src/server/chat_sample.h"
#include "src/server/generation.h"
#include "src/server/media_call.h"
#include "src/server/request_id.h"
#include "src/server/sampling_fields.h"
#include "src/server/sse.h"

namespace m3::server {
namespace {

// Of the prompt: what the prefix cache gave, and the rest. Nothing is charged for filling it.
Json usage_of(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

class MessageWriter : public ReplyWriter {
 public:
  MessageWriter(std::shared_ptr<Exchange> exchange, ChatCall call, bool show_thinking, bool joins)
      : exchange_(std::move(exchange)),
        call_(std::move(call)),
        sample_(call_, joins),
        show_thinking_(show_thinking),
        id_("msg_" + random_id()) {}

 protected:
  // The members before the content, and the ones behind it.
  Json head() const { return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", call_.model}}; }

  // Errors (ApiError): it was cancelled, so there is no reason to give.
  Json stop() const {
    std::string reason = "end_turn";
    Json sequence = nullptr;
    if (sample_.finish() == FinishReason::cancelled) {
      throw ApiError(503, "the reply was cancelled by the server", {}, "cancelled");
    }
    if (sample_.finish() == FinishReason::length) {
      const bool own_limit = call_.request.max_tokens && sample_.usage().completion_tokens >= *call_.request.max_tokens;
      reason = own_limit ? "max_tokens" : "model_context_window_exceeded";
    } else if (sample_.stop_reason().is_string()) {
      reason = "stop_sequence";
      sequence = sample_.stop_reason();
    } else if (sample_.calls() > 0) {
      reason = "tool_use";
    }
    return {{"stop_reason", reason}, {"stop_sequence", std::move(sequence)}};
  }

  // Thinking blocks carry a signature that clients send back with them; it says nothing here.
  static std::string signature() { return "m3-" + random_id(); }
  static std::string tool_id(const Delta& delta) {
    return "toolu_" + delta.call_id.substr(delta.call_id.find('_') + 1);
  }

  std::shared_ptr<Exchange> exchange_;
  ChatCall call_;
  ChatSample sample_;
  bool show_thinking_;
  std::string id_;
};

class WholeMessage final : public MessageWriter {
 public:
  WholeMessage(std::shared_ptr<Exchange> exchange, ChatCall call, bool show_thinking)
      : MessageWriter(std::move(exchange), std::move(call), show_thinking, false) {}

  void event(std::size_t, const Event& event, Clock::time_point now) override {
    for (const Delta& delta : sample_.event(event, now)) take(delta);
  }

  void finish() override {
    const Json end = stop();
    // Put together as text, since a tool's input is passed on as the JSON text that it is, digit for digit.
    std::string content;
    for (const Block& block : blocks_) content += (content.empty() ? "" : ",") + text_of(block);
    Json rest = end;
    rest["usage"] = usage_of(sample_.usage());
    std::string body = to_text(head());
    body.back() = ',';
    body += "\"content\":[" + content + "]," + to_text(rest).substr(1);
    exchange_->send({.body = std::move(body)});
  }

  void fail(const ApiError& error) override { exchange_->send(error_reply(error, exchange_->request())); }

 private:
  struct Block {
    Delta::Kind kind;
    std::string text, id, name;
  };

  void take(const Delta& delta) {
    switch (delta.kind) {
      case Delta::Kind::content:
      case Delta::Kind::reasoning:
        if (delta.kind == Delta::Kind::reasoning && !show_thinking_) return;
        if (blocks_.empty() || blocks_.back().kind != delta.kind) blocks_.push_back({delta.kind, {}, {}, {}});
        blocks_.back().text += delta.text;
        return;
      case Delta::Kind::call: blocks_.push_back({delta.kind, {}, tool_id(delta), delta.text}); return;
      case Delta::Kind::arguments: blocks_.back().text += delta.text; return;
    }
  }

  static std::string text_of(const Block& block) {
    if (block.kind == Delta::Kind::content) return to_text({{"type", "text"}, {"text", block.text}});
    if (block.kind == Delta::Kind::reasoning) {
      return to_text({{"type", "thinking"}, {"thinking", block.text}, {"signature", signature()}});
    }
    std::string out = to_text({{"type", "tool_use"}, {"id", block.id}, {"name", block.name}});
    out.back() = ',';
    return out + "\"input\":" + (block.text.empty() ? "{}" : block.text) + "}";
  }

  std::vector<Block> blocks_;
};

class StreamedMessage final : public MessageWriter {
 public:
  StreamedMessage(std::shared_ptr<Exchange> exchange, ChatCall call, bool show_thinking, bool joins)
      : MessageWriter(exchange, std::move(call), show_thinking, joins), stream_(std::move(exchange)) {}

  void begin() override {
    stream_.begin();
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = message["stop_sequence"] = nullptr;
    Usage usage;  // how much of the prompt is cached is not known yet; message_delta tells
    usage.prompt_tokens = static_cast<std::int64_t>(call_.request.prompt_ids.size());
    message["usage"] = usage_of(usage);
    send({{"type", "message_start"}, {"message", std::move(message)}});
    send({{"type", "ping"}});
  }

  void event(std::size_t, const Event& event, Clock::time_point now) override {
    for (const Delta& delta : sample_.event(event, now)) take(delta);
  }

  std::optional<Clock::time_point> due() const override {
    const Clock::time_point ping = last_ + ping_interval;
    const auto due = sample_.due();
    return due && *due < ping ? *due : ping;
  }

  void tick(Clock::time_point now) override {
    for (const Delta& delta : sample_.tick(now)) take(delta);
    if (now - last_ >= ping_interval) send({{"type", "ping"}});
  }

  void finish() override try {
    Json end = stop();
    close_block();
    send({{"type", "message_delta"}, {"delta", std::move(end)}, {"usage", usage_of(sample_.usage())}});
    stream_.send_last({{"type", "message_stop"}}, "message_stop");
  } catch (const ApiError& error) {
    fail(error);
  }

  void fail(const ApiError& error) override {
    const std::string body = error_body(error, ErrorStyle::anthropic, exchange_->request().id);
    exchange_->end("event: error\ndata: " + body + "\n\n");
  }

 private:
  static constexpr std::chrono::seconds ping_interval{10};

  void send(const Json& data) {
    last_ = Clock::now();
    stream_.send(data, data["type"].get_ref<const std::string&>());
  }

  void take(const Delta& delta) {
    switch (delta.kind) {
      case Delta::Kind::content:
        open_block(delta.kind, {{"type", "text"}, {"text", ""}});
        send_delta({{"type", "text_delta"}, {"text", delta.text}});
        return;
      case Delta::Kind::reasoning:
        if (!show_thinking_) return;
        open_block(delta.kind, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        send_delta({{"type", "thinking_delta"}, {"thinking", delta.text}});
        return;
      case Delta::Kind::call:
        close_block();
        open_block(delta.kind,
                   {{"type", "tool_use"}, {"id", tool_id(delta)}, {"name", delta.text}, {"input", Json::object()}});
        return;
      case Delta::Kind::arguments: send_delta({{"type", "input_json_delta"}, {"partial_json", delta.text}}); return;
    }
  }

  void open_block(Delta::Kind kind, Json block) {
    if (open_ && *open_ == kind) return;
    close_block();
    open_ = kind;
    send({{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
  }

  void close_block() {
    if (!open_) return;
    if (*open_ == Delta::Kind::reasoning) send_delta({{"type", "signature_delta"}, {"signature", signature()}});
    open_.reset();
    send({{"type", "content_block_stop"}, {"index", index_++}});
  }

  void send_delta(Json delta) {
    send({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }

  SseStream stream_;
  std::optional<Delta::Kind> open_;  // the block being written
  int index_ = 0;
  Clock::time_point last_ = Clock::now();
};

ChatCall read_call(const Server& server, const AnthropicRequest& request) try {
  return read_chat_call(server, request.chat_body);
} catch (...) {
  throw request.names.translate(to_api_error(std::current_exception()));
}

AnthropicRequest read_request(const Server& server, const Exchange& exchange, bool counting) {
  AnthropicRequest request = read_anthropic_request(
      parse_body(exchange.request()),
      {.needs_max_tokens = !counting, .allow_unknown_fields = server.options().allow_unknown_fields});
  return request;
}

void create_message(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const AnthropicRequest given = read_request(server, *exchange, false);
  const auto call = std::make_shared<ChatCall>(read_call(server, given));
  auto pictures = std::move(call->pictures);
  const auto generate = [&server, exchange, call, streamed = given.stream,
                         thinking = given.show_thinking](const std::vector<media::Prepared>& prepared) {
    add_pictures(server.model(), prepared, *call);
    Request request = call->request;
    call->request.media.clear();  // the engine has them
    std::unique_ptr<ReplyWriter> writer;
    if (streamed) {
      writer = std::make_unique<StreamedMessage>(exchange, std::move(*call), thinking, server.options().join_packets);
    } else {
      writer = std::make_unique<WholeMessage>(exchange, std::move(*call), thinking);
    }
    start_generation(server, exchange, std::move(request), std::move(writer));
  };
  try {
    with_pictures(server, exchange, std::move(pictures), given.names, generate);
  } catch (...) {
    throw given.names.translate(to_api_error(std::current_exception()));
  }
}

void count_tokens(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const AnthropicRequest given = read_request(server, *exchange, true);
  try {
    Fields fields(given.chat_body);
    read_model_name(fields, server);
    const chat::ChatRequest request = read_chat(server, given.chat_body);
    with_pictures(server, exchange, read_pictures(server, request, given.chat_body), given.names,
                  [&server, exchange, ids = encode_chat(server.model(), request)](const auto& pictures) {
                    const Model& model = server.model();
                    const std::size_t tokens =
                        media::expand_prompt(model.tokenizer, model.engine->info().media, ids, pictures).size();
                    exchange->send({.body = to_text({{"input_tokens", tokens}})});
                  });
  } catch (...) {
    throw given.names.translate(to_api_error(std::current_exception()));
  }
}

}  // namespace

void add_anthropic_routes(Router& router, Server& server) {
  constexpr auto style = ErrorStyle::anthropic;
  router.add({"POST", "/v1/messages",
              [&server](const std::shared_ptr<Exchange>& exchange) { create_message(server, exchange); }, style});
  router.add({"POST", "/v1/messages/count_tokens",
              [&server](const std::shared_ptr<Exchange>& exchange) { count_tokens(server, exchange); }, style});
}

}  // namespace m3::server
