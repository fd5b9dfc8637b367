#include "src/checkpoint/generation_config.h"

#include <array>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/checkpoint/json_fields.h"

namespace m3 {

namespace {

std::int32_t token_id(const JsonFields& fields, const Json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX) {
    fields.refuse("eos_token_id", "a token id, or a list of them");
  }
  return value.get<std::int32_t>();
}

// A number for which `accept` holds; `accepted` says so in words.
template <typename Accept>
std::optional<float> number(const JsonFields& fields, const std::string& key, const std::string& accepted,
                            Accept accept) {
  const auto value = fields.number(key);
  if (!value) return std::nullopt;
  if (!accept(*value)) fields.refuse(key, accepted);
  return static_cast<float>(*value);
}

// Keys of transformers that would change what is generated.
constexpr std::array unimplemented = {"num_beams",
                                      "num_beam_groups",
                                      "penalty_alpha",
                                      "typical_p",
                                      "epsilon_cutoff",
                                      "eta_cutoff",
                                      "no_repeat_ngram_size",
                                      "encoder_repetition_penalty",
                                      "bad_words_ids",
                                      "force_words_ids",
                                      "suppress_tokens",
                                      "begin_suppress_tokens",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "sequence_bias",
                                      "guidance_scale",
                                      "exponential_decay_length_penalty",
                                      "max_new_tokens",
                                      "min_new_tokens",
                                      "stop_strings",
                                      "top_h"};

// Values that mean "off".
bool neutral(const Json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return true;
  if (value.is_number()) return value.get<double>() == 0 || value.get<double>() == 1;
  return (value.is_array() || value.is_object()) && value.empty();
}

}  // namespace

GenerationConfig parse_generation_config(const std::string& json, const std::string& origin) {
  const Json parsed = parse_json_object(json, origin);
  const JsonFields fields(parsed, origin);
  GenerationConfig config;
  if (const Json* eos = fields.find("eos_token_id")) {
    if (eos->is_array()) {
      for (const Json& id : *eos) config.eos_token_ids.push_back(token_id(fields, id));
    } else {
      config.eos_token_ids.push_back(token_id(fields, *eos));
    }
  }
  config.do_sample = fields.boolean("do_sample");
  config.temperature =
      number(fields, "temperature", "a number from 0 to 100", [](double v) { return v >= 0 && v <= 100; });
  // Some files say -1 for "off", as vLLM does.
  if (const auto top_k = fields.integer("top_k", -1, INT32_MAX))
    config.top_k = *top_k < 0 ? 0 : static_cast<int>(*top_k);
  config.top_p = number(fields, "top_p", "above 0, at most 1", [](double v) { return v > 0 && v <= 1; });
  config.min_p = number(fields, "min_p", "from 0 to below 1", [](double v) { return v >= 0 && v < 1; });
  config.repetition_penalty =
      number(fields, "repetition_penalty", "a number above 0, at most 100", [](double v) { return v > 0 && v <= 100; });
  for (const char* key : unimplemented) {
    const Json* value = fields.find(key);
    if (value != nullptr && !neutral(*value)) config.without_effect.emplace_back(key);
  }
  return config;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory) {
  const auto file = directory / "generation_config.json";
  if (!std::filesystem::exists(file)) return {};
  return parse_generation_config(read_text_file(file, 16u << 20), file.string());
}

}  // namespace m3
