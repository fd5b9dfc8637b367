#include <array>
#include <cmath>

#include "src/base/error.h"
#include "src/checkpoint/config_parts.h"

namespace m3 {

namespace {

// The scaling type of one object, "" where it names none. Both spellings of the key are in use.
std::string scaling_type(const JsonFields& object) {
  const auto spelled = object.text("rope_type");
  const auto old = object.text("type");
  if (spelled && old && *spelled != *old) object.refuse("type", "the value of rope_type, \"" + *spelled + "\"");
  return spelled ? *spelled : old.value_or("");
}

void refuse_unknown_keys(const JsonFields& object) {
  constexpr std::array known = {"rope_type",        "type",
                                "rope_theta",       "partial_rotary_factor",
                                "factor",           "original_max_position_embeddings",
                                "beta_fast",        "beta_slow",
                                "attention_factor", "truncate"};
  for (const auto& [key, value] : object.json().items()) {
    bool found = value.is_null();
    for (const char* name : known) found = found || key == name;
    if (!found) object.refuse(key, "no such key (it would change the positions, and m3 does not know how)");
  }
}

YarnScaling parse_yarn(const JsonFields& object) {
  YarnScaling yarn;
  const auto factor = object.number("factor");
  if (!factor) object.missing("factor", "YaRN needs it");
  if (*factor < 1 || *factor > 4096) object.refuse("factor", "a number from 1 to 4096");
  yarn.factor = *factor;
  yarn.original_max_position_embeddings =
      object.required_integer("original_max_position_embeddings", 1, std::int64_t{1} << 31);
  yarn.beta_fast = object.number("beta_fast").value_or(32);
  yarn.beta_slow = object.number("beta_slow").value_or(1);
  if (!(yarn.beta_slow > 0)) object.refuse("beta_slow", "a positive number");
  if (!(yarn.beta_fast >= yarn.beta_slow)) object.refuse("beta_fast", "a number not below beta_slow");
  yarn.attention_factor = object.number("attention_factor");
  if (yarn.attention_factor && !(*yarn.attention_factor > 0)) object.refuse("attention_factor", "a positive number");
  yarn.truncate = object.boolean("truncate").value_or(true);
  return yarn;
}

std::optional<YarnScaling> parse_scaling(const std::optional<JsonFields>& object) {
  if (!object || object->json().empty()) return std::nullopt;
  refuse_unknown_keys(*object);
  const std::string type = scaling_type(*object);
  if (type == "yarn") return parse_yarn(*object);
  if (!type.empty() && type != "default") {
    object->refuse(object->has("rope_type") ? "rope_type" : "type", "\"default\" or \"yarn\"");
  }
  if (object->has("factor")) object->refuse("factor", "no factor without rope_type \"yarn\"");
  return std::nullopt;
}

bool same(const YarnScaling& a, const YarnScaling& b) {
  return a.factor == b.factor && a.original_max_position_embeddings == b.original_max_position_embeddings &&
         a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow && a.attention_factor == b.attention_factor &&
         a.truncate == b.truncate;
}

// partial_rotary_factor, else rotary_dim / head_dim; only M3's 64 of 128 is accepted.
void check_rotary_width(const JsonFields& text, const std::optional<JsonFields>& parameters) {
  const auto check = [](const JsonFields& where) {
    const auto factor = where.number("partial_rotary_factor");
    if (factor && *factor * head_dim != rotary_dim) where.refuse("partial_rotary_factor", "0.5 (64 of 128)");
    return factor.has_value();
  };
  text.only("rotary_dim", std::int64_t{rotary_dim});
  const bool inner = parameters && check(*parameters);
  const bool outer = check(text);
  if (!inner && !outer && !text.has("rotary_dim")) {
    text.missing("partial_rotary_factor", "neither it nor rotary_dim is there; accepted: 0.5 (64 of 128)");
  }
}

}  // namespace

void parse_rope(const JsonFields& text, ModelConfig& config) {
  const auto parameters = text.object("rope_parameters");
  const auto scaling = text.object("rope_scaling");
  const bool inside = parameters && parameters->has("rope_theta");
  const auto theta = inside ? parameters->number("rope_theta") : text.number("rope_theta");
  if (!theta) text.missing("rope_theta", "MiniMax-M3 has 5000000; it is not guessed");
  if (!(*theta > 1) || *theta > 1e30) (inside ? *parameters : text).refuse("rope_theta", "a number above 1");
  config.rope_theta = *theta;
  check_rotary_width(text, parameters);

  const auto from_parameters = parse_scaling(parameters);
  const auto from_scaling = parse_scaling(scaling);
  if (from_parameters && from_scaling && !same(*from_parameters, *from_scaling)) {
    text.refuse("rope_scaling", "the same YaRN values as rope_parameters");
  }
  config.yarn = from_parameters ? from_parameters : from_scaling;
}

}  // namespace m3
