#include "src/server/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "src/server/errors.h"
#include "src/server/server.h"

namespace m3::server {
namespace {

using chat::Kind;
using chat::Value;

constexpr std::size_t most_stops = 256;
constexpr std::size_t longest_stop = 4096;

void read_stops(Fields& fields, Request& request) {
  const Value* stop = fields.value("stop");
  if (stop == nullptr) return;
  if (stop->is(Kind::string)) {
    request.stop = {stop->bytes()};
  } else {
    request.stop = *fields.strings("stop", most_stops);
  }
  for (std::size_t i = 0; i < request.stop.size(); ++i) {
    const std::string path = stop->is(Kind::string) ? "stop" : fmt::format("stop[{}]", i);
    if (request.stop[i].empty()) refuse(path, "a stop string is empty");
    if (request.stop[i].size() > longest_stop) {
      refuse(path, fmt::format("longer than the {} bytes that a stop string may have", longest_stop));
    }
  }
}

// {"token id": bias}.
void read_logit_bias(Fields& fields, std::int64_t vocab_size, SamplingParameters& sampling) {
  const Value* given = fields.value("logit_bias");
  if (given == nullptr) return;
  if (!given->is(Kind::dict)) refuse("logit_bias", "expected an object, found " + kind_of(*given));
  for (const auto& [key, bias] : given->as_dict().items) {
    const std::string& name = key.bytes();
    const std::string path = "logit_bias." + name;
    TokenId id = -1;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), id);
    if (result.ec != std::errc() || result.ptr != name.data() + name.size() || id < 0 || id >= vocab_size) {
      refuse(path, fmt::format("not a token id; they go from 0 to {}", vocab_size - 1));
    }
    const bool numeric = bias.is(Kind::integer) || bias.is(Kind::floating);
    if (!numeric || !(bias.as_double() >= -100 && bias.as_double() <= 100)) {
      refuse(path, "expected a number from -100 to 100");
    }
    sampling.logit_bias.emplace_back(id, static_cast<float>(bias.as_double()));
  }
}

// A word as it stands in running text, and as it begins one.
void read_bad_words(Fields& fields, const Tokenizer& tokenizer, SamplingParameters& sampling) {
  const auto words = fields.strings("bad_words", most_stops);
  for (std::size_t i = 0; words && i < words->size(); ++i) {
    const std::string path = fmt::format("bad_words[{}]", i);
    const std::size_t begin = (*words)[i].find_first_not_of(' ');
    if (begin == std::string::npos) refuse(path, "a word is empty");
    if ((*words)[i].size() > longest_stop) {
      refuse(path, fmt::format("longer than the {} bytes that a word may have", longest_stop));
    }
    const std::string word = (*words)[i].substr(begin);
    sampling.banned.push_back(tokenizer.encode(word, {.parse_special = true}));
    sampling.banned.push_back(tokenizer.encode(" " + word, {.parse_special = true}));
  }
}

std::optional<float> narrow(std::optional<double> value) {
  if (!value) return std::nullopt;
  return static_cast<float>(*value);
}

}  // namespace

void read_sampling(Fields& fields, const Model& model, const ServerOptions& options, Request& request) {
  const ModelInfo& info = model.engine->info();
  SamplingParameters& sampling = request.sampling;
  sampling.temperature = narrow(fields.number("temperature", 0, 2));
  sampling.top_p = narrow(fields.number("top_p", 0, 1));
  if (sampling.top_p && *sampling.top_p <= 0) refuse("top_p", "0 is out of range; give a number above 0, up to 1");
  if (const auto top_k = fields.integer("top_k", -1, info.vocab_size)) sampling.top_k = static_cast<int>(*top_k);
  sampling.min_p = narrow(fields.number("min_p", 0, 1));
  sampling.repetition_penalty = narrow(fields.number("repetition_penalty", 0, 10));
  if (sampling.repetition_penalty && *sampling.repetition_penalty <= 0) {
    refuse("repetition_penalty", "0 is out of range; give a number above 0, up to 10");
  }
  sampling.presence_penalty = narrow(fields.number("presence_penalty", -2, 2)).value_or(0);
  sampling.frequency_penalty = narrow(fields.number("frequency_penalty", -2, 2)).value_or(0);
  read_logit_bias(fields, info.vocab_size, sampling);
  if (const auto seed =
          fields.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
  }
  request.samples = static_cast<int>(fields.integer("n", 1, 128).value_or(1));
  request.min_tokens = fields.integer("min_tokens", 0, std::numeric_limits<std::int32_t>::max()).value_or(0);
  read_stops(fields, request);
  if (const auto ids = fields.integers("stop_token_ids", 0, info.vocab_size - 1, most_stops)) {
    request.stop_ids.assign(ids->begin(), ids->end());
  }
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.include_stop_in_output = fields.boolean("include_stop_str_in_output").value_or(false);
  request.priority = static_cast<int>(
      fields.integer("priority", std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max())
          .value_or(0));
  // vLLM reads -1 as "all"; here a number is needed.
  request.prompt_logprobs = static_cast<int>(fields.integer("prompt_logprobs", 0, options.max_logprobs).value_or(-1));
  request.cache_salt = fields.string("cache_salt").value_or("");
  request.skip_special = fields.boolean("skip_special_tokens").value_or(true);
  read_bad_words(fields, model.tokenizer, sampling);
  if (const auto ids =
          fields.integers("allowed_token_ids", 0, info.vocab_size - 1, static_cast<std::size_t>(info.vocab_size))) {
    if (ids->empty()) refuse("allowed_token_ids", "is empty; leave it out to allow all");
    sampling.allowed_ids.assign(ids->begin(), ids->end());
  }
}

StreamFields read_stream(Fields& fields) {
  StreamFields out;
  out.stream = fields.boolean("stream").value_or(false);
  auto options = fields.object("stream_options");
  if (!options) return out;
  if (!out.stream) refuse("stream_options", "only with \"stream\": true");
  out.include_usage = options->boolean("include_usage").value_or(false);
  out.continuous_usage = out.include_usage && options->boolean("continuous_usage_stats").value_or(false);
  options->ignore({"include_obfuscation"});
  options->finish(false);
  return out;
}

void read_without_effect(Fields& fields) {
  fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key"});
  // Spaces come from tokens alone in a byte-level tokenizer, so both values mean the same.
  static_cast<void>(fields.boolean("spaces_between_special_tokens"));
  fields.only("store", false, "replies are not stored here; leave it out or give false");
  fields.only("service_tier", {"auto", "default"}, "there is one tier here; leave it out or give \"auto\"");
  fields.only("use_beam_search", false, "beam search is not implemented");
  fields.only("early_stopping", false, "it belongs to beam search, which is not implemented");
  if (const auto penalty = fields.number("length_penalty", -1e6, 1e6); penalty && *penalty != 1) {
    refuse("length_penalty", "it belongs to beam search, which is not implemented");
  }
  for (const char* name : {"logits_processors", "kv_transfer_params", "vllm_xargs", "repetition_detection"}) {
    fields.refuse_if_given(name, "not implemented");
  }
}

PromptLimit::PromptLimit(Fields& fields, const ModelInfo& info)
    : most_(fields.integer("truncate_prompt_tokens", -1, info.max_model_len)), context_(info.max_model_len) {
  if (most_ == 0) refuse("truncate_prompt_tokens", "0 leaves no prompt; give a number from 1, or -1");
}

void PromptLimit::apply(std::vector<TokenId>& ids, const Request& request) const {
  if (!most_) return;
  const std::int64_t reply = std::min(request.max_tokens.value_or(1), context_ - 1);
  const auto most = static_cast<std::size_t>(*most_ > 0 ? *most_ : context_ - reply);
  if (ids.size() > most) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(most));
}

std::string read_model_name(Fields& fields, const Server& server) {
  const auto name = fields.string("model");
  if (!name || name->empty()) return server.served_name();
  if (!server.serves(*name)) {
    throw ApiError(404, fmt::format("model: '{}' is not served here; '{}' is", shortened(*name), server.served_name()),
                   "model", "model_not_found");
  }
  return *name;
}

}  // namespace m3::server
