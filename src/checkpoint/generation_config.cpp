#include "src/checkpoint/generation_config.h"

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
  return config;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory) {
  const auto file = directory / "generation_config.json";
  if (!std::filesystem::exists(file)) return {};
  return parse_generation_config(read_text_file(file, 16u << 20), file.string());
}

}  // namespace m3
