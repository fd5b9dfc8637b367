#include "src/checkpoint/json_fields.h"

#include <fmt/ranges.h>

#include <cmath>
#include <unordered_set>
#include <utility>

#include "src/base/error.h"

namespace m3 {

Json parse_json_object(std::string_view text, const std::string& origin) {
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > 64) fail("{}: JSON nested deeper than 64 levels", origin);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      fail("{}: the key {} is given twice", origin, describe(value));
    }
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    std::string reason = error.what();
    for (char& c : reason) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    if (reason.size() > 300) reason = reason.substr(0, 300) + "...";
    fail("{}: not valid JSON: {}", origin, reason);
  }
  if (!parsed.is_object()) fail("{}: expected a JSON object, found {}", origin, describe(parsed));
  return parsed;
}

std::string describe(const Json& value) {
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

JsonFields::JsonFields(const Json& object, std::string origin, std::string path)
    : object_(&object), origin_(std::move(origin)), path_(std::move(path)) {}

const Json* JsonFields::find(const std::string& key) const {
  const auto found = object_->find(key);
  if (found == object_->end() || found->is_null()) return nullptr;
  return &*found;
}

std::optional<JsonFields> JsonFields::object(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, "an object");
  return JsonFields(*value, origin_, path_ + key + ".");
}

std::optional<std::int64_t> JsonFields::integer(const std::string& key, std::int64_t low, std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string accepted = fmt::format("a whole number from {} to {}", low, high);
  if (!value->is_number_integer()) refuse(key, accepted);
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    refuse(key, accepted);
  }
  const auto number = value->get<std::int64_t>();
  if (number < low || number > high) refuse(key, accepted);
  return number;
}

std::optional<double> JsonFields::number(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonFields::boolean(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::text(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> JsonFields::texts(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) refuse(key, "a list of strings");
  std::vector<std::string> result;
  for (const Json& item : *value) {
    if (!item.is_string())
      fail("{}: {}{} holds {}; a list of strings is accepted", origin_, path_, key, describe(item));
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::optional<std::vector<bool>> JsonFields::switches(const std::string& key, std::size_t count) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || value->size() != count) {
    refuse(key, fmt::format("a list with one 0 or 1 for each of the {} layers", count));
  }
  std::vector<bool> result;
  for (std::size_t layer = 0; layer < count; ++layer) {
    const Json& item = (*value)[layer];
    const bool on = item == Json(1) || item == Json(true);
    if (!on && item != Json(0) && item != Json(false)) {
      fail("{}: {}{}[{}] is {}; accepted: 0 or 1", origin_, path_, key, layer, describe(item));
    }
    result.push_back(on);
  }
  return result;
}

std::int64_t JsonFields::required_integer(const std::string& key, std::int64_t low, std::int64_t high) const {
  const auto value = integer(key, low, high);
  if (!value) missing(key, fmt::format("accepted: a whole number from {} to {}", low, high));
  return *value;
}

void JsonFields::only(const std::string& key, bool accepted) const {
  const Json* value = find(key);
  if (value != nullptr && *value != Json(accepted)) refuse(key, accepted ? "true" : "false");
}

void JsonFields::only(const std::string& key, std::int64_t accepted) const {
  const Json* value = find(key);
  if (value != nullptr && (!value->is_number() || *value != Json(accepted))) refuse(key, fmt::format("{}", accepted));
}

void JsonFields::only_one_of(const std::string& key, std::initializer_list<std::string_view> accepted) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_string()) {
    for (const std::string_view text : accepted) {
      if (value->get_ref<const std::string&>() == text) return;
    }
  }
  refuse(key, fmt::format("\"{}\"", fmt::join(accepted, "\" or \"")));
}

void JsonFields::refuse(const std::string& key, const std::string& accepted) const {
  const auto found = object_->find(key);
  fail("{}: {}{} is {}; accepted: {}", origin_, path_, key, found == object_->end() ? "absent" : describe(*found),
       accepted);
}

void JsonFields::missing(const std::string& key, const std::string& why) const {
  fail("{}: {}{} is missing; {}", origin_, path_, key, why);
}

}  // namespace m3
