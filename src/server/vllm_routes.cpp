// Paths that vLLM has beside the OpenAI API: tokens, metrics, the cache, requests by id; and the chat format alone.
#include <fmt/format.h>

#include "src/chat/parser.h"
#include "src/chat/template/json.h"
#include "src/server/chat_call.h"
#include "src/server/errors.h"
#include "src/server/json.h"
#include "src/server/media_call.h"
#include "src/server/routes.h"
#include "src/server/sampling_fields.h"

namespace m3::server {

using chat::Kind;
using chat::Value;

namespace {

// A chat's body as a member of another: errors say where it stands.
chat::ChatRequest check_member_chat(const Server& server, const Value& body, const std::string& path) try {
  return check_chat(server, body);
} catch (...) {
  const ApiError problem = to_api_error(std::current_exception());
  if (problem.param.empty()) throw;
  throw ApiError(problem.status, path + "." + problem.what(), path + "." + problem.param, problem.code);
}

}  // namespace

void tokenize(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Model& model = server.model();
  const Value body = parse_body(exchange->request());
  Fields fields(body);
  static_cast<void>(read_model_name(fields, server));
  const bool strings = fields.boolean("return_token_strs").value_or(false);
  std::vector<TokenId> given;
  std::vector<media::Reference> references;
  if (fields.value("messages") != nullptr) {
    fields.refuse_if_given("prompt", "give 'prompt' or 'messages'");
    const chat::ChatRequest request = check_chat(server, body, {"prompt", "return_token_strs"});
    references = read_pictures(server, request, body);
    given = encode_chat(model, request);
  } else {
    const auto prompt = fields.string("prompt");
    if (!prompt) refuse("prompt", "missing; give 'prompt' (a string) or 'messages'");
    fields.ignore({"add_special_tokens"});  // the tokenizer adds none
    fields.finish(server.options().allow_unknown_fields);
    given = model.engine->encode(*prompt, true);
  }
  const auto answer = [&model, exchange, given = std::move(given), strings](const auto& pictures) {
    const std::vector<TokenId> ids = media::expand_prompt(model.tokenizer, model.engine->info().media, given, pictures);
    Json reply = {{"count", ids.size()}, {"max_model_len", model.engine->info().max_model_len}, {"tokens", ids}};
    reply["token_strs"] = nullptr;
    if (strings) {
      reply["token_strs"] = Json::array();
      for (const TokenId id : ids) reply["token_strs"].push_back(model.tokenizer.token_text(id));
    }
    exchange->send({.body = to_text(reply)});
  };
  with_pictures(server, exchange, std::move(references), {}, answer);
}

void detokenize(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Model& model = server.model();
  const Value body = parse_body(exchange->request());
  Fields fields(body);
  static_cast<void>(read_model_name(fields, server));
  const auto ids = fields.integers("tokens", 0, model.engine->info().vocab_size - 1, std::size_t{1} << 24);
  if (!ids) refuse("tokens", "missing; a list of token ids is expected");
  fields.finish(server.options().allow_unknown_fields);
  for (std::size_t i = 0; i < ids->size(); ++i) {
    if (!model.tokenizer.has_token((*ids)[i])) {
      refuse(fmt::format("tokens[{}]", i), fmt::format("the tokenizer has no token {}", (*ids)[i]));
    }
  }
  const std::vector<TokenId> narrow(ids->begin(), ids->end());
  exchange->send({.body = to_text({{"prompt", model.engine->decode(narrow, false)}})});
}

void load(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Statistics now = server.model().engine->statistics();
  exchange->send({.body = to_text({{"server_load", server.generations().size()},
                                   {"running", now.running},
                                   {"waiting", now.waiting + static_cast<std::int64_t>(server.media().waiting())},
                                   {"pages_used", now.pages_used},
                                   {"pages_total", now.pages_total}})});
}

void metrics(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const bool there = server.state() == Server::State::ready || server.state() == Server::State::draining;
  const Engine* engine = there ? server.model().engine.get() : nullptr;
  const media::MediaLoader& media = server.media();
  const Metrics::Pictures pictures = {media.waiting(), media.held_bytes(), media.decoding_bytes()};
  exchange->send({.body = server.metrics().text(there ? server.served_name() : "", engine, pictures),
                  .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void reset_prefix_cache(Server& server, const std::shared_ptr<Exchange>& exchange) {
  server.model().engine->reset_prefix_cache();
  exchange->send({.body = "{}"});
}

void abort_requests(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Value body = parse_body(exchange->request());
  Fields fields(body);
  const auto ids = fields.strings("request_ids", 4096);
  const bool all = fields.boolean("abort_all").value_or(false);
  fields.finish(server.options().allow_unknown_fields);
  if (!ids && !all) refuse("request_ids", "missing; a list of the x-request-id values of requests is expected");
  std::size_t aborted = all ? server.generations().cancel_all() : 0;
  if (!all) {
    for (const std::string& id : *ids) aborted += server.generations().cancel(id);
  }
  exchange->send({.body = to_text({{"aborted", aborted}})});
}

// What `m3 chat-render` does.
void chat_render(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Model& model = server.model();
  const Value body = parse_body(exchange->request());
  const chat::ChatRequest request = check_chat(server, body);
  const chat::Text prompt = chat::render_prompt(require_template(model), request);
  Json spans = Json::array();
  prompt.for_each_run([&](std::string_view text, chat::Origin origin) {
    spans.push_back({{"origin", origin == chat::Origin::message ? "message" : "template"}, {"text", text}});
  });
  const auto answer = [&model, exchange, text = prompt.bytes(), spans = std::move(spans),
                       given = chat::encode_prompt(model.tokenizer, prompt)](const auto& pictures) {
    const std::vector<TokenId> ids = media::expand_prompt(model.tokenizer, model.engine->info().media, given, pictures);
    exchange->send({.body = to_text({{"prompt", text}, {"token_ids", ids}, {"count", ids.size()}, {"spans", spans}})});
  };
  // A model that takes no pictures still shows where its template would have them.
  const bool takes = model.engine->info().media.unavailable.empty();
  with_pictures(server, exchange, takes ? read_pictures(server, request, body) : std::vector<media::Reference>(), {},
                answer);
}

// What `m3 chat-parse` does: {"request": a chat body, "text": what a model wrote for it}.
void chat_parse(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Value body = parse_body(exchange->request());
  Fields fields(body);
  const auto text = fields.string("text");
  if (!text) refuse("text", "missing; the model's text is expected");
  const Value* given = fields.value("request");
  if (given == nullptr) refuse("request", "missing; the body of a chat request is expected");
  fields.finish(server.options().allow_unknown_fields);
  if (!given->is(Kind::dict)) refuse("request", "expected an object, found " + kind_of(*given));
  const chat::ChatRequest request = check_member_chat(server, *given, "request");
  const chat::ParsedOutput output =
      chat::parse_output(*text, request.parsed_tools, request.mode(), request.continue_final_message, request.answer);
  Json calls = Json::array();
  for (const auto& call : output.calls) calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  exchange->send({.body = to_text({{"content", output.content},
                                   {"reasoning_content", output.reasoning},
                                   {"tool_calls", calls},
                                   {"finish", output.calls.empty() ? "stop" : "tool_calls"}})});
}

}  // namespace m3::server
