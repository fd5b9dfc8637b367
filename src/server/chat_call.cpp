#include "src/server/chat_call.h"

#include <fmt/format.h>

#include <limits>

#include "src/chat/reply_rules.h"
#include "src/server/errors.h"
#include "src/server/media_call.h"
#include "src/server/sampling_fields.h"

namespace m3::server {

using chat::Kind;
using chat::Value;

namespace {

// Fields that the chat layer reads (src/chat/messages.h).
void skip_chat_fields(Fields& fields) {
  fields.ignore({"messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "thinking",
                 "reasoning_effort", "add_generation_prompt", "continue_final_message"});
  for (const char* name : media::request_sizing_names) fields.ignore({name});  // read_pictures() reads them
}

void read_harmless(Fields& fields) {
  read_without_effect(fields);
  fields.ignore({"prompt_cache_retention", "prediction"});
  fields.only("verbosity", {"medium"}, "the model has no such setting");
  fields.only("add_special_tokens", false, "the chat template writes the special tokens; only false is implemented");
  if (const auto modalities = fields.strings("modalities", 8)) {
    for (const std::string& modality : *modalities) {
      if (modality != "text") refuse("modalities", fmt::format("'{}': the model writes text only", modality));
    }
  }
}

void refuse_foreign(Fields& fields) {
  fields.refuse_if_given("functions", "the old form of tools is not implemented; use 'tools'");
  fields.refuse_if_given("function_call", "the old form of tool_choice is not implemented; use 'tool_choice'");
  fields.refuse_if_given("audio", "the model neither hears nor speaks");
  fields.refuse_if_given("web_search_options", "there is no web search here");
  fields.refuse_if_given("chat_template",
                         "a template in a request is not accepted; start the server with --chat-template");
  fields.refuse_if_given("documents", "the model's template has no place for documents; put them into a message");
  fields.refuse_if_given("best_of", "not implemented");
}

void read_logprobs(Fields& fields, const ServerOptions& options, ChatCall& call) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, options.max_logprobs);
  if (top && *top > 0 && !wanted) refuse("top_logprobs", "only with \"logprobs\": true");
  if (wanted) call.request.logprobs = static_cast<int>(top.value_or(0));
}

void read_lengths(Fields& fields, ChatCall& call) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  const auto old_name = fields.integer("max_tokens", 1, most);
  const auto limit = fields.integer("max_completion_tokens", 1, most);
  call.request.max_tokens = limit ? limit : old_name;
}

void read_echo(Fields& fields, ChatCall& call) {
  if (!fields.boolean("echo").value_or(false)) return;
  const Value& last = call.chat.messages.items().back();
  const Value* role = last.as_dict().find("role");
  const Value* content = last.as_dict().find("content");
  if (role->bytes() == "assistant" && content != nullptr && content->is(Kind::string)) call.echo = content->bytes();
}

}  // namespace

chat::ChatRequest read_chat(const Server& server, const Value& body) {
  const auto& defaults = server.template_defaults().as_dict().items;
  const chat::Dict& given = body.as_dict();
  const Value* arguments = given.find("chat_template_kwargs");
  const bool malformed = arguments != nullptr && !arguments->is(Kind::dict) && !arguments->is(Kind::none);
  if (defaults.empty() || malformed) return chat::parse_chat_request(body);
  auto filled = std::make_shared<chat::Dict>();
  if (arguments != nullptr && arguments->is(Kind::dict)) *filled = arguments->as_dict();
  const auto there = [](const chat::Dict& dict, const char* name) {
    const Value* value = dict.find(name);
    return value != nullptr && !value->is(Kind::none);
  };
  // What a request says of thinking in any of its ways counts more than a default.
  const bool thinking = there(given, "thinking") || there(given, "reasoning_effort") ||
                        there(*filled, "thinking_mode") || there(*filled, "enable_thinking");
  for (const auto& [key, value] : defaults) {
    const bool of_thinking = key.bytes() == "thinking_mode" || key.bytes() == "enable_thinking";
    if (of_thinking ? !thinking : filled->find(key) == nullptr) filled->set(key, value);
  }
  auto merged = std::make_shared<chat::Dict>(given);
  merged->set(Value::string("chat_template_kwargs", chat::Origin::message),
              Value::dict(std::move(filled), chat::Origin::message));
  return chat::parse_chat_request(Value::dict(std::move(merged), chat::Origin::message));
}

void check_nested_names(const Value& body) {
  const auto dict_in = [](const Value& holder, const char* name) -> const Value* {
    const Value* value = holder.as_dict().find(name);
    return value != nullptr && value->is(Kind::dict) ? value : nullptr;
  };
  const auto check = [](const Value& object, const std::string& path, std::initializer_list<std::string_view> names) {
    Fields fields(object, path + ".");
    fields.ignore(names);
    fields.finish(false);
  };
  if (const Value* thinking = dict_in(body, "thinking")) check(*thinking, "thinking", {"type", "budget_tokens"});
  if (const Value* format = dict_in(body, "response_format")) {
    check(*format, "response_format", {"type", "json_schema", "schema"});
    if (const Value* schema = dict_in(*format, "json_schema")) {
      check(*schema, "response_format.json_schema", {"name", "description", "schema", "strict"});
    }
  }
  const Value* tools = body.as_dict().find("tools");
  if (tools == nullptr || !tools->is(Kind::list)) return;
  // Beside OpenAI's own names those that clients carry over from other APIs.
  for (std::size_t i = 0; i < tools->items().size(); ++i) {
    const Value& tool = tools->items()[i];
    if (!tool.is(Kind::dict)) continue;
    const std::string path = fmt::format("tools[{}]", i);
    check(tool, path,
          {"type", "function", "id", "index", "name", "description", "strict", "cache_control", "defer_loading",
           "allowed_callers", "input_examples"});
    if (const Value* function = dict_in(tool, "function")) {
      check(*function, path + ".function",
            {"name", "description", "parameters", "strict", "id", "type", "title", "response", "return", "returns",
             "examples", "cache_control"});
    }
  }
}

const chat::ChatTemplate& require_template(const Model& model) {
  if (!model.chat_template) {
    throw ApiError(400, "this checkpoint has no chat template, so it cannot chat (" + model.no_template +
                            "); use /v1/completions, or start the server with --chat-template FILE");
  }
  return *model.chat_template;
}

std::vector<TokenId> encode_chat(const Model& model, const chat::ChatRequest& request) {
  return chat::encode_prompt(model.tokenizer, chat::render_prompt(require_template(model), request));
}

void check_prompt_length(const Model& model, std::size_t tokens, const std::string& param) {
  const std::int64_t most = model.engine->info().max_model_len;
  if (static_cast<std::int64_t>(tokens) < most) return;
  throw ApiError(400,
                 fmt::format("{}: the prompt has {} tokens, but the context holds {}, of which at least one is for the "
                             "reply; shorten it",
                             param, tokens, most),
                 param, "context_length_exceeded");
}

namespace {

// All that stands beside the messages, for whoever makes a reply of it or only looks.
void read_fields(const Server& server, Fields& fields, ChatCall& call) {
  const Model& model = server.model();
  const ServerOptions& options = server.options();
  call.model = read_model_name(fields, server);
  skip_chat_fields(fields);
  read_harmless(fields);
  refuse_foreign(fields);
  static_cast<StreamFields&>(call) = read_stream(fields);
  read_logprobs(fields, options, call);
  read_lengths(fields, call);
  read_sampling(fields, model, options, call.request);
  call.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  call.reasoning_split = fields.boolean("reasoning_split").value_or(true);
  call.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  call.tokens_as_ids = fields.boolean("return_tokens_as_token_ids").value_or(options.return_tokens_as_ids);
  fields.ignore({"echo"});
  fields.ignore({"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
                 "guided_grammar", "thinking_budget", "thinking_token_budget"});  // apply_reply_rules() reads them
}

}  // namespace

chat::ChatRequest check_chat(const Server& server, const Value& body, std::initializer_list<std::string_view> also) {
  const bool allow_unknown = server.options().allow_unknown_fields;
  Fields fields(body);
  ChatCall call;
  read_fields(server, fields, call);
  static_cast<void>(PromptLimit(fields, server.model().engine->info()));
  fields.ignore(also);
  fields.finish(allow_unknown);
  require_template(server.model());
  call.chat = read_chat(server, body);
  if (!allow_unknown) check_nested_names(body);
  chat::apply_reply_rules(body, call.chat, server.model().tokenizer, call.request);
  return call.chat;
}

ChatCall read_chat_call(const Server& server, const Value& body) {
  const Model& model = server.model();
  const ServerOptions& options = server.options();
  Fields fields(body);
  ChatCall call;
  read_fields(server, fields, call);
  const PromptLimit limit(fields, model.engine->info());
  fields.finish(options.allow_unknown_fields);
  require_template(model);
  call.chat = read_chat(server, body);
  call.pictures = read_pictures(server, call.chat, body);
  if (!call.pictures.empty()) {
    fields.refuse_if_given("truncate_prompt_tokens", "a prompt with pictures is not cut; leave it out");
  }
  if (!options.allow_unknown_fields) check_nested_names(body);
  chat::apply_reply_rules(body, call.chat, model.tokenizer, call.request);
  read_echo(fields, call);
  call.request.prompt_ids = encode_chat(model, call.chat);
  limit.apply(call.request.prompt_ids, call.request);
  check_prompt_length(model, call.request.prompt_ids.size(), "messages");
  // Nobody reads them any more, and pictures in them are large.
  call.chat.messages = {};
  call.chat.media.clear();
  return call;
}

}  // namespace m3::server
