#include "src/server/completion_call.h"

#include <fmt/format.h>

#include <limits>

#include "src/chat/reply_rules.h"
#include "src/server/chat_call.h"
#include "src/server/errors.h"
#include "src/server/sampling_fields.h"

namespace m3::server {

using chat::Kind;
using chat::Value;

namespace {

constexpr std::size_t most_choices = 65536;  // prompts times samples: some 50 MB of replies that are made at once
// Of prompts, in one reply; each takes some 150 bytes until it is sent.
constexpr std::int64_t most_prompt_logprobs = 8'000'000;
constexpr std::int64_t default_tokens = 16;

std::vector<TokenId> ids_of(const Value& list, const std::string& path, std::int64_t vocab_size) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < list.items().size(); ++i) {
    const Value& item = list.items()[i];
    if (!item.is(Kind::integer) || item.as_int() < 0 || item.as_int() >= vocab_size) {
      refuse(fmt::format("{}[{}]", path, i), fmt::format("expected a token id from 0 to {}", vocab_size - 1));
    }
    ids.push_back(static_cast<TokenId>(item.as_int()));
  }
  return ids;
}

// A string, a list of strings, a list of ids, or a list of lists of ids. Text may hold special tokens: this API has no
// other way to write them, and who sends it writes the whole prompt.
std::vector<std::vector<TokenId>> read_prompts(Fields& fields, const Model& model, int samples) {
  const Value* given = fields.value("prompt");
  if (given == nullptr) refuse("prompt", "missing");
  const std::int64_t vocab_size = model.engine->info().vocab_size;
  const auto encode = [&](const Value& text) { return model.engine->encode(text.bytes(), true); };
  if (given->is(Kind::string)) return {encode(*given)};
  if (!given->is(Kind::list))
    refuse("prompt", "expected a string, or a list of strings or ids; found " + kind_of(*given));
  const std::vector<Value>& items = given->items();
  if (items.empty()) refuse("prompt", "the list is empty");
  if (!items[0].is(Kind::string) && !items[0].is(Kind::list)) return {ids_of(*given, "prompt", vocab_size)};
  if (items.size() > most_choices / static_cast<std::size_t>(samples)) {
    refuse("prompt", fmt::format("has {} prompts, each to be continued {} times; at most {} replies are made at once",
                                 items.size(), samples, most_choices));
  }
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string path = fmt::format("prompt[{}]", i);
    if (items[i].is(Kind::string)) {
      prompts.push_back(encode(items[i]));
    } else if (items[i].is(Kind::list)) {
      prompts.push_back(ids_of(items[i], path, vocab_size));
    } else {
      refuse(path, "expected a string or a list of ids, found " + kind_of(items[i]));
    }
  }
  return prompts;
}

void read_harmless(Fields& fields) {
  read_without_effect(fields);
  fields.ignore({"add_special_tokens"});  // the tokenizer adds none
  fields.refuse_if_given("suffix", "the model fills no gaps; send text to continue as 'prompt'");
  fields.refuse_if_given("prompt_embeds", "not implemented");
}

// A placeholder stands for a picture's features, and this API has no pictures.
void check_no_pictures(const Model& model, const std::vector<TokenId>& ids, const std::string& path) {
  const MediaInfo& media = model.engine->info().media;
  if (!media.unavailable.empty()) return;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || (ids[i] != media.image_id && ids[i] != media.video_id)) continue;
    refuse(path, fmt::format("its token {} ({}) is the place of a picture or video, which come with chats alone "
                             "(/v1/chat/completions)",
                             i, ids[i]));
  }
}

// Each sample's reply repeats those of its prompt.
void check_prompt_logprobs(const CompletionCall& call) {
  if (call.request.prompt_logprobs < 0) return;
  std::int64_t tokens = 0;
  for (const std::vector<TokenId>& prompt : call.prompts) tokens += std::ssize(prompt);
  const std::int64_t all = tokens * call.request.samples * (call.request.prompt_logprobs + 1);
  if (all > most_prompt_logprobs) {
    refuse(
        call.prompt_logprobs ? "prompt_logprobs" : "logprobs",
        fmt::format("{} tokens of prompts with {} log-probabilities each, in {} samples, are {}; at most {} are given "
                    "at once",
                    tokens, call.request.prompt_logprobs + 1, call.request.samples, all, most_prompt_logprobs));
  }
}

}  // namespace

CompletionCall read_completion_call(const Server& server, const Value& body) {
  const Model& model = server.model();
  const ServerOptions& options = server.options();
  Fields fields(body);
  CompletionCall call;
  call.model = read_model_name(fields, server);
  read_harmless(fields);
  Request& request = call.request;
  read_sampling(fields, model, options, request);
  if (const auto best = fields.integer("best_of", 1, 128); best && *best != request.samples) {
    refuse("best_of", "picking the best of more samples is not implemented; leave it out or give the value of 'n'");
  }
  static_cast<StreamFields&>(call) = read_stream(fields);
  call.echo = fields.boolean("echo").value_or(false);
  const auto limit = fields.integer("max_tokens", 0, std::numeric_limits<std::int64_t>::max());
  if (limit == 0 && !call.echo) refuse("max_tokens", "0 is only of use with \"echo\": true");
  call.only_echo = limit == 0;
  request.max_tokens = std::max<std::int64_t>(1, limit.value_or(std::max(default_tokens, request.min_tokens)));
  call.logprobs = static_cast<int>(fields.integer("logprobs", 0, options.max_logprobs).value_or(-1));
  request.logprobs = call.logprobs;
  call.prompt_logprobs = request.prompt_logprobs >= 0;
  if (call.echo && call.logprobs >= 0) request.prompt_logprobs = std::max(request.prompt_logprobs, call.logprobs);
  call.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  call.tokens_as_ids = fields.boolean("return_tokens_as_token_ids").value_or(options.return_tokens_as_ids);
  fields.ignore({"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
                 "guided_grammar"});  // apply_reply_rules() reads them
  std::vector<std::vector<TokenId>>& prompts = call.prompts;
  prompts = read_prompts(fields, model, request.samples);
  const PromptLimit prompt_limit(fields, model.engine->info());
  fields.finish(options.allow_unknown_fields);

  chat::ChatRequest plain;  // no tools, no reasoning
  plain.parsed_tools = std::make_shared<const std::vector<chat::Tool>>();
  plain.thinking = chat::ThinkingMode::disabled;
  chat::apply_reply_rules(body, plain, model.tokenizer, request);
  if (!options.allow_unknown_fields) check_nested_names(body);

  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string path = prompts.size() == 1 ? "prompt" : fmt::format("prompt[{}]", i);
    if (prompts[i].empty()) refuse(path, "is empty; at least one token is needed");
    prompt_limit.apply(prompts[i], request);
    check_prompt_length(model, prompts[i].size(), path);
    check_no_pictures(model, prompts[i], path);
    if (call.echo) call.texts.push_back(model.engine->decode(prompts[i], false));
  }
  check_prompt_logprobs(call);
  return call;
}

}  // namespace m3::server
