// POST /v1/responses, GET and DELETE /v1/responses/{id}.
#include <ctime>

#include "src/server/api_routes.h"
#include "src/server/chat_call.h"
#include "src/server/chat_sample.h"
#include "src/server/generation.h"
#include "src/server/media_call.h"
#include "src/server/request_id.h"
#include "src/server/responses_request.h"
#include "src/server/responses_store.h"
#include "src/server/sse.h"
#include "src/server/values.h"

namespace m3::server {
namespace {

using chat::Value;

// One item of the output, while it is written and after.
struct Item {
  Delta::Kind kind = Delta::Kind::content;  // content, reasoning or call
  std::string id, text;                     // of a call, its arguments
  std::string call_id, name;
};

const char* id_prefix(Delta::Kind kind) {
  return kind == Delta::Kind::content ? "msg_" : kind == Delta::Kind::reasoning ? "rs_" : "fc_";
}

Json part_json(const Item& item, const std::string& text) {
  if (item.kind == Delta::Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

// `written`: with its text; without, as it begins.
Json item_json(const Item& item, const char* status, bool written, bool encrypted) {
  Json parts = Json::array();
  if (written) parts.push_back(part_json(item, item.text));
  switch (item.kind) {
    case Delta::Kind::content:
      return {{"id", item.id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", parts}};
    case Delta::Kind::reasoning: {
      Json out = {
          {"id", item.id}, {"type", "reasoning"}, {"status", status}, {"summary", Json::array()}, {"content", parts}};
      if (encrypted) out["encrypted_content"] = pack_reasoning(item.text);
      return out;
    }
    default:
      return {{"id", item.id},           {"type", "function_call"}, {"status", status},
              {"call_id", item.call_id}, {"name", item.name},       {"arguments", written ? item.text : ""}};
  }
}

class ResponseWriter : public ReplyWriter {
 public:
  ResponseWriter(std::shared_ptr<ResponseStore> store, std::shared_ptr<Exchange> exchange, ResponsesRequest given,
                 ChatCall call, bool joins)
      : store_(std::move(store)),
        exchange_(std::move(exchange)),
        given_(std::move(given)),
        call_(std::move(call)),
        sample_(call_, joins),
        id_("resp_" + random_id()),
        created_(std::time(nullptr)) {}

  void event(std::size_t, const Event& event, Clock::time_point now) override {
    for (const Delta& delta : sample_.event(event, now)) take(delta);
  }

  void finish() override {
    close_item();
    if (sample_.finish() == FinishReason::cancelled) {
      return fail(ApiError(503, "the reply was cancelled by the server", {}, "cancelled"));
    }
    const bool whole = sample_.finish() != FinishReason::length;
    const Json response = response_json(whole ? "completed" : "incomplete");
    if (given_.store) store(response);
    send_last(response);
  }

 protected:
  virtual void opened(const Item&) {}
  virtual void grew(const Item&, const std::string&) {}
  virtual void closed(const Item&) {}
  virtual void send_last(const Json& response) = 0;

  std::size_t index() const { return items_.size() - 1; }

  Json response_json(const std::string& status) const {
    Json out = {{"id", id_}, {"object", "response"}, {"created_at", created_}, {"status", status}};
    out["background"] = false;
    out["completed_at"] = nullptr;
    if (status == "completed") out["completed_at"] = std::time(nullptr);
    out["error"] = nullptr;
    out["incomplete_details"] = nullptr;
    if (status == "incomplete") out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    out["model"] = call_.model;
    out["output"] = Json::array();
    const bool done = status != "in_progress";
    for (std::size_t i = 0; done && i < items_.size(); ++i) {
      const bool cut = status == "incomplete" && i + 1 == items_.size();
      out["output"].push_back(item_json(items_[i], cut ? "incomplete" : "completed", true, given_.encrypted_reasoning));
    }
    out.update(given_.echo);
    out["service_tier"] = "default";
    out["top_logprobs"] = 0;
    out["truncation"] = "disabled";
    out["usage"] = nullptr;
    if (done) out["usage"] = usage();
    return out;
  }

  std::shared_ptr<ResponseStore> store_;
  std::shared_ptr<Exchange> exchange_;
  ResponsesRequest given_;
  ChatCall call_;
  ChatSample sample_;
  std::string id_;
  std::time_t created_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item is being written

  void take(const Delta& delta) {
    if (delta.kind == Delta::Kind::arguments) return grow(delta.text);
    const bool goes_on = open_ && delta.kind != Delta::Kind::call && items_.back().kind == delta.kind;
    if (!goes_on) {
      close_item();
      items_.push_back({delta.kind, id_prefix(delta.kind) + random_id(), {}, delta.call_id, {}});
      if (delta.kind == Delta::Kind::call) items_.back().name = delta.text;
      open_ = true;
      opened(items_.back());
    }
    if (delta.kind != Delta::Kind::call) grow(delta.text);
  }

 private:
  void grow(const std::string& text) {
    items_.back().text += text;
    grew(items_.back(), text);
  }

  void close_item() {
    if (!open_) return;
    open_ = false;
    closed(items_.back());
  }

  Json usage() const {
    const Usage& usage = sample_.usage();
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }

  void store(const Json& response) {
    StoredResponse stored{to_text(response), given_.messages, given_.added};
    std::string text, reasoning;
    std::vector<Value> calls;
    for (const Item& item : items_) {
      if (item.kind == Delta::Kind::content) text += item.text;
      if (item.kind == Delta::Kind::reasoning) reasoning += item.text;
      if (item.kind != Delta::Kind::call) continue;
      const Value function = dict_value({{"name", text_value(item.name)}, {"arguments", text_value(item.text)}});
      calls.push_back(
          dict_value({{"id", text_value(item.call_id)}, {"type", text_value("function")}, {"function", function}}));
    }
    chat::Dict message;
    set_member(message, "role", text_value("assistant"));
    set_member(message, "content", text_value(text));
    if (!reasoning.empty()) set_member(message, "reasoning_content", text_value(reasoning));
    if (!calls.empty()) set_member(message, "tool_calls", list_value(std::move(calls)));
    stored.messages.push_back(dict_value(std::move(message)));
    store_->put(id_, std::move(stored), given_.body_bytes, given_.added_messages + 1);
  }
};

class WholeResponse final : public ResponseWriter {
 public:
  using ResponseWriter::ResponseWriter;
  void send_last(const Json& response) override { exchange_->send({.body = to_text(response)}); }
  void fail(const ApiError& error) override { exchange_->send(error_reply(error, exchange_->request())); }
};

class StreamedResponse final : public ResponseWriter {
 public:
  StreamedResponse(std::shared_ptr<ResponseStore> store, std::shared_ptr<Exchange> exchange, ResponsesRequest given,
                   ChatCall call, bool joins)
      : ResponseWriter(std::move(store), exchange, std::move(given), std::move(call), joins),
        stream_(std::move(exchange)) {}

  void begin() override {
    stream_.begin();
    const Json response = response_json("in_progress");
    send("response.created", {{"response", response}});
    send("response.in_progress", {{"response", response}});
  }

  std::optional<Clock::time_point> due() const override { return sample_.due(); }
  void tick(Clock::time_point now) override {
    for (const Delta& delta : sample_.tick(now)) take(delta);
  }

  void fail(const ApiError& error) override {
    Json response = response_json("failed");
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    end("response.failed", {{"response", std::move(response)}});
  }

 private:
  Json numbered(const std::string& type, const Json& fields) {
    Json out = {{"type", type}, {"sequence_number", number_++}};
    out.update(fields);
    return out;
  }
  void send(const std::string& type, const Json& fields) { stream_.send(numbered(type, fields), type); }
  void end(const std::string& type, const Json& fields) { stream_.send_last(numbered(type, fields), type); }

  Json place(const Item& item) const { return {{"item_id", item.id}, {"output_index", index()}}; }
  Json part_place(const Item& item) const {
    Json out = place(item);
    out["content_index"] = 0;
    return out;
  }
  static Json with(Json fields, const char* name, Json value) {
    fields[name] = std::move(value);
    return fields;
  }

  void opened(const Item& item) override {
    send("response.output_item.added",
         {{"output_index", index()}, {"item", item_json(item, "in_progress", false, false)}});
    if (item.kind == Delta::Kind::call) return;
    send("response.content_part.added", with(part_place(item), "part", part_json(item, "")));
  }

  void grew(const Item& item, const std::string& text) override {
    if (item.kind == Delta::Kind::call) {
      return send("response.function_call_arguments.delta", with(place(item), "delta", text));
    }
    if (item.kind == Delta::Kind::reasoning) {
      return send("response.reasoning_text.delta", with(part_place(item), "delta", text));
    }
    send("response.output_text.delta", with(with(part_place(item), "delta", text), "logprobs", Json::array()));
  }

  void closed(const Item& item) override {
    if (item.kind == Delta::Kind::call) {
      send("response.function_call_arguments.done", with(with(place(item), "name", item.name), "arguments", item.text));
    } else if (item.kind == Delta::Kind::reasoning) {
      send("response.reasoning_text.done", with(part_place(item), "text", item.text));
    } else {
      send("response.output_text.done", with(with(part_place(item), "text", item.text), "logprobs", Json::array()));
    }
    if (item.kind != Delta::Kind::call) {
      send("response.content_part.done", with(part_place(item), "part", part_json(item, item.text)));
    }
    const char* status = sample_.finish() == FinishReason::length ? "incomplete" : "completed";
    send("response.output_item.done",
         {{"output_index", index()}, {"item", item_json(item, status, true, given_.encrypted_reasoning)}});
  }

  void send_last(const Json& response) override {
    end("response." + response["status"].get<std::string>(), {{"response", response}});
  }

  SseStream stream_;
  std::int64_t number_ = 0;
};

void create(Server& server, const std::shared_ptr<ResponseStore>& store, const std::shared_ptr<Exchange>& exchange) {
  ResponsesRequest given =
      read_responses_request(parse_body(exchange->request()), *store, server.options().allow_unknown_fields);
  given.body_bytes = exchange->request().body.size();
  const FieldNames names = given.names;
  try {
    const auto call = std::make_shared<ChatCall>(read_chat_call(server, given.chat_body));
    auto pictures = std::move(call->pictures);
    given.chat_body = {};  // it was read, and pictures in it are large
    const auto asked = std::make_shared<ResponsesRequest>(std::move(given));
    const auto generate = [&server, store, exchange, call, asked](const std::vector<media::Prepared>& prepared) {
      add_pictures(server.model(), prepared, *call);
      Request request = call->request;
      call->request.media.clear();  // the engine has them
      std::unique_ptr<ReplyWriter> writer;
      if (asked->stream) {
        writer = std::make_unique<StreamedResponse>(store, exchange, std::move(*asked), std::move(*call),
                                                    server.options().join_packets);
      } else {
        writer = std::make_unique<WholeResponse>(store, exchange, std::move(*asked), std::move(*call), false);
      }
      start_generation(server, exchange, std::move(request), std::move(writer));
    };
    with_pictures(server, exchange, std::move(pictures), names, generate);
  } catch (...) {
    throw names.translate(to_api_error(std::current_exception()));
  }
}

[[noreturn]] void not_stored(const std::string& id) {
  throw ApiError(404, "no response '" + id + "' is stored here", "response_id", "not_found");
}

}  // namespace

void add_responses_routes(Router& router, Server& server) {
  const auto store = std::make_shared<ResponseStore>();
  router.add({"POST", "/v1/responses",
              [&server, store](const std::shared_ptr<Exchange>& exchange) { create(server, store, exchange); }});
  router.add({"GET", "/v1/responses/{id}", [store](const std::shared_ptr<Exchange>& exchange) {
                const std::string& id = exchange->request().path_values.at("id");
                if (exchange->request().query.find("stream=true") != std::string::npos) {
                  throw ApiError(400, "stream: a stored response is given whole", "stream");
                }
                auto found = store->get(id);
                if (!found) not_stored(id);
                exchange->send({.body = std::move(found->body)});
              }});
  router.add({"DELETE", "/v1/responses/{id}", [store](const std::shared_ptr<Exchange>& exchange) {
                const std::string& id = exchange->request().path_values.at("id");
                if (!store->remove(id)) not_stored(id);
                exchange->send({.body = to_text({{"id", id}, {"object", "response"}, {"deleted", true}})});
              }});
}

}  // namespace m3::server
