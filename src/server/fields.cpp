#include "src/server/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/chat/request_fields.h"
#include "src/chat/template/json.h"
#include "src/server/errors.h"
#include "src/tokenizer/utf8.h"

namespace m3::server {

using chat::Kind;
using chat::Value;

Value parse_body(const HttpRequest& request) {
  if (request.body.empty()) throw ApiError(400, "the request has no body; a JSON object is expected");
  if (!is_valid_utf8(request.body)) throw ApiError(400, "the body is not UTF-8");
  std::string problem;
  std::optional<Value> body = chat::try_parse_json(request.body, problem);
  if (!body) throw ApiError(400, "the body is not JSON: " + problem);
  if (!body->is(Kind::dict)) throw ApiError(400, "the body is " + kind_of(*body) + "; a JSON object is expected");
  return *body;
}

std::string kind_of(const Value& value) { return chat::json_type(value); }

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 64;  // the edits take time, and no slip of a finger is longer
  std::string best;
  if (word.size() > longest) return best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : known) {
    std::vector<std::size_t> row(name.size() + 1);
    for (std::size_t j = 0; j <= name.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j <= name.size(); ++j) {
        const std::size_t above = row[j];
        row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (word[i - 1] != name[j - 1])});
        diagonal = above;
      }
    }
    if (row.back() >= least) continue;
    least = row.back();
    best = name;
  }
  return best;
}

Fields::Fields(const Value& object, std::string path) : dict_(object.as_dict()), path_(std::move(path)) {}

const Value* Fields::value(std::string_view name) {
  known_.emplace(name);
  const Value* found = dict_.find(name);
  return found == nullptr || found->is(Kind::none) ? nullptr : found;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Kind::boolean)) refuse(path_of(name), "expected true or false, found " + kind_of(*found));
  return found->as_bool();
}

namespace {

// 3 and 3.0 alike; large ones keep all digits.
std::optional<std::int64_t> whole(const Value& value) {
  if (value.is(Kind::integer)) return value.as_int();
  if (!value.is(Kind::floating)) return std::nullopt;
  const double number = value.as_double();
  if (std::trunc(number) != number || std::abs(number) > 9e15) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

// "a number" would not say what is wrong with 112.5.
std::string number_or_kind(const Value& value) {
  return value.is(Kind::floating) ? fmt::format("{}", value.as_double()) : kind_of(value);
}

}  // namespace

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t low, std::int64_t high) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  const bool huge = found->is(Kind::big_integer);
  const auto number = whole(*found);
  if (!number && !huge) refuse(path_of(name), "expected a whole number, found " + number_or_kind(*found));
  if (huge || *number < low || *number > high) {
    refuse(path_of(name), fmt::format("{} is out of range; give a whole number from {} to {}",
                                      huge ? shortened(found->digits(), 40) : std::to_string(*number), low, high));
  }
  return number;
}

std::optional<double> Fields::number(std::string_view name, double low, double high) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  const bool numeric = found->is(Kind::integer) || found->is(Kind::floating);
  if (found->is(Kind::big_integer)) {
    refuse(path_of(name),
           fmt::format("{} is out of range; give a number from {} to {}", shortened(found->digits(), 40), low, high));
  }
  if (!numeric) refuse(path_of(name), "expected a number, found " + kind_of(*found));
  const double number = found->as_double();
  if (!std::isfinite(number) || number < low || number > high) {
    refuse(path_of(name), fmt::format("{} is out of range; give a number from {} to {}", number, low, high));
  }
  return number;
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Kind::string)) refuse(path_of(name), "expected a string, found " + kind_of(*found));
  return found->bytes();
}

std::string Fields::required_string(std::string_view name) {
  std::optional<std::string> given = string(name);
  if (!given) refuse(path_of(name), "missing");
  return std::move(*given);
}

std::optional<std::string> Fields::word(std::string_view name, std::initializer_list<std::string_view> known) {
  std::optional<std::string> given = string(name);
  if (given && std::ranges::find(known, *given) == known.end()) {
    refuse(path_of(name), fmt::format("'{}' is unknown; known are {}", shortened(*given), fmt::join(known, ", ")));
  }
  return given;
}

std::optional<std::vector<std::string>> Fields::strings(std::string_view name, std::size_t most) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Kind::list)) refuse(path_of(name), "expected a list of strings, found " + kind_of(*found));
  if (found->items().size() > most) {
    refuse(path_of(name), fmt::format("has {} items; at most {} are taken", found->items().size(), most));
  }
  std::vector<std::string> out;
  for (std::size_t i = 0; i < found->items().size(); ++i) {
    const Value& item = found->items()[i];
    if (!item.is(Kind::string)) {
      refuse(fmt::format("{}[{}]", path_of(name), i), "expected a string, found " + kind_of(item));
    }
    out.push_back(item.bytes());
  }
  return out;
}

std::optional<std::vector<std::int64_t>> Fields::integers(std::string_view name, std::int64_t low, std::int64_t high,
                                                          std::size_t most) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Kind::list)) refuse(path_of(name), "expected a list of whole numbers, found " + kind_of(*found));
  if (found->items().size() > most) {
    refuse(path_of(name), fmt::format("has {} items; at most {} are taken", found->items().size(), most));
  }
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < found->items().size(); ++i) {
    const auto number = whole(found->items()[i]);
    if (!number || *number < low || *number > high) {
      refuse(fmt::format("{}[{}]", path_of(name), i), fmt::format("expected a whole number from {} to {}", low, high));
    }
    out.push_back(*number);
  }
  return out;
}

std::optional<Fields> Fields::object(std::string_view name) {
  const Value* found = value(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Kind::dict)) refuse(path_of(name), "expected an object, found " + kind_of(*found));
  return Fields(*found, path_of(name) + ".");
}

void Fields::ignore(std::initializer_list<std::string_view> names) { known_.insert(names.begin(), names.end()); }

void Fields::refuse_if_given(std::string_view name, const std::string& why) {
  if (value(name) != nullptr) refuse(path_of(name), why);
}

void Fields::only_boolean(std::string_view name, bool expected, const std::string& why) {
  const auto given = boolean(name);
  if (given && *given != expected) refuse(path_of(name), why);
}

void Fields::only(std::string_view name, std::initializer_list<std::string_view> values, const std::string& why) {
  const auto given = string(name);
  if (given && std::ranges::find(values, *given) == values.end()) refuse(path_of(name), why);
}

std::string Fields::path_of(std::string_view name) const { return path_ + shortened(name); }

void Fields::finish(bool allow_unknown) const {
  if (allow_unknown) return;
  for (const auto& [key, member] : dict_.items) {
    const std::string& name = key.bytes();
    if (known_.contains(name)) continue;
    const std::string near = nearest_word(name, {known_.begin(), known_.end()});
    refuse(path_of(name), near.empty() ? "unknown field (the server's --allow-unknown-fields lets such fields pass)"
                                       : fmt::format("unknown field; did you mean '{}'?", near));
  }
}

}  // namespace m3::server
