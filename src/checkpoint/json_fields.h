// Reading JSON that somebody else wrote: every error names the file, the key, what was found and what is accepted.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace m3 {

using Json = nlohmann::json;

// Parses `text`, which must hold one object. Refused: broken JSON, a key given twice in one object (the reader of
// the one and the writer of the other would disagree), and nesting deeper than 64.
Json parse_json_object(std::string_view text, const std::string& origin);

// A value in a few words: scalars as JSON, long strings cut, arrays and objects by size.
std::string describe(const Json& value);

// One object of a file, with the path to it for messages ("text_config.").
class JsonFields {
 public:
  JsonFields(const Json& object, std::string origin, std::string path = "");

  // The value, or nullptr where the key is absent or null.
  const Json* find(const std::string& key) const;
  bool has(const std::string& key) const { return find(key) != nullptr; }
  // A nested object; nullopt where absent. Errors: another type.
  std::optional<JsonFields> object(const std::string& key) const;

  std::optional<std::int64_t> integer(const std::string& key, std::int64_t low, std::int64_t high) const;
  std::optional<double> number(const std::string& key) const;  // finite
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::vector<std::string>> texts(const std::string& key) const;
  // `count` switches of 0, 1, false or true.
  std::optional<std::vector<bool>> switches(const std::string& key, std::size_t count) const;

  std::int64_t required_integer(const std::string& key, std::int64_t low, std::int64_t high) const;

  // Refuse a present value other than the one that M3 has.
  void only(const std::string& key, bool accepted) const;
  void only(const std::string& key, std::int64_t accepted) const;
  void only_one_of(const std::string& key, std::initializer_list<std::string_view> accepted) const;

  [[noreturn]] void refuse(const std::string& key, const std::string& accepted) const;
  [[noreturn]] void missing(const std::string& key, const std::string& why) const;

  const Json& json() const { return *object_; }
  const std::string& origin() const { return origin_; }
  std::string full_key(const std::string& key) const { return path_ + key; }

 private:
  const Json* object_;
  std::string origin_;
  std::string path_;
};

}  // namespace m3
