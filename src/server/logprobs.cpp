#include "src/server/logprobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/tokenizer/utf8.h"

namespace m3::server {

std::string token_name(const Tokenizer& tokenizer, TokenId id, bool as_id) {
  return as_id ? fmt::format("token_id:{}", id) : to_valid_utf8(tokenizer.token_bytes(id));
}

namespace {

// JSON has no infinity.
double finite(float value) { return std::max(static_cast<double>(value), -9999.0); }

Json entry_of(const Tokenizer& tokenizer, const TokenLogprob& entry, bool as_ids) {
  Json bytes = Json::array();
  for (const char c : tokenizer.token_bytes(entry.id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token_name(tokenizer, entry.id, as_ids)},
          {"logprob", finite(entry.logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

void append_chat_logprobs(const Tokenizer& tokenizer, const Event& event, bool as_ids, Json& entries) {
  for (std::size_t i = 0; i < event.logprobs.size(); ++i) {
    Json entry = entry_of(tokenizer, event.logprobs[i], as_ids);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : event.top_logprobs[i]) {
      entry["top_logprobs"].push_back(entry_of(tokenizer, top, as_ids));
    }
    entries.push_back(std::move(entry));
  }
}

void CompletionLogprobs::add_token(const Tokenizer& tokenizer, const TokenLogprob& token,
                                   const std::vector<TokenLogprob>& tops, std::size_t top, bool as_ids) {
  tokens_.push_back(token_name(tokenizer, token.id, as_ids));
  offsets_.push_back(offset_);
  const std::string_view bytes = tokenizer.token_bytes(token.id);
  offset_ += static_cast<std::size_t>(
      std::ranges::count_if(bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  logprobs_.push_back(finite(token.logprob));
  Json named = Json::object();
  for (std::size_t i = 0; i < std::min(top, tops.size()); ++i) {
    named[token_name(tokenizer, tops[i].id, as_ids)] = finite(tops[i].logprob);
  }
  // The token itself is among them, as in vLLM.
  named[token_name(tokenizer, token.id, as_ids)] = finite(token.logprob);
  tops_.push_back(std::move(named));
}

void CompletionLogprobs::add(const Tokenizer& tokenizer, const Event& event, bool as_ids) {
  for (std::size_t i = 0; i < event.logprobs.size(); ++i) {
    add_token(tokenizer, event.logprobs[i], event.top_logprobs[i], event.top_logprobs[i].size(), as_ids);
  }
}

void CompletionLogprobs::add_prompt(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt, const Event& first,
                                    bool as_ids, int top) {
  for (std::size_t i = 0; i < first.prompt_logprobs.size(); ++i) {
    const TokenLogprob token = {prompt[i], first.prompt_logprobs[i].logprob};
    add_token(tokenizer, token, first.prompt_top_logprobs[i], static_cast<std::size_t>(top), as_ids);
    if (i > 0) continue;
    logprobs_.back() = nullptr;  // nothing stands before the first
    tops_.back() = nullptr;
  }
}

Json CompletionLogprobs::take() {
  const auto taken = [](Json& list) { return std::exchange(list, Json::array()); };
  return {{"tokens", taken(tokens_)},
          {"token_logprobs", taken(logprobs_)},
          {"top_logprobs", taken(tops_)},
          {"text_offset", taken(offsets_)}};
}

Json prompt_logprobs_json(const Tokenizer& tokenizer, const Event& event) {
  Json list = Json::array();
  for (std::size_t i = 0; i < event.prompt_logprobs.size(); ++i) {
    const TokenLogprob& own = event.prompt_logprobs[i];
    if (own.id < 0) {
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& token, int rank) {
      Json& out = entry[std::to_string(token.id)];
      if (out.is_null()) {
        out = {{"logprob", finite(token.logprob)},
               {"rank", rank > 0 ? Json(rank) : Json(nullptr)},
               {"decoded_token", token_name(tokenizer, token.id, false)}};
      }
    };
    int rank = 0;
    const auto& tops = event.prompt_top_logprobs[i];
    const auto place = std::ranges::find(tops, own.id, &TokenLogprob::id);
    add(own, place == tops.end() ? 0 : static_cast<int>(place - tops.begin()) + 1);
    for (const TokenLogprob& top : tops) add(top, ++rank);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace m3::server
