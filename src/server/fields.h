// Reads the members of a JSON request, each checked, and none overlooked: what nobody asked for is refused in the end.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/template/value.h"
#include "src/server/http.h"

namespace m3::server {

// The body as a JSON object. Errors (ApiError 400): not JSON, another kind of value, nested too deep.
chat::Value parse_body(const HttpRequest& request);

class Fields {
 public:
  // `path` begins the names in errors: "" or "stream_options.". The object must outlive this.
  explicit Fields(const chat::Value& object, std::string path = {});

  // Each is nothing where the member is absent or null, and an error that names it where its type or range is wrong.
  const chat::Value* value(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  std::optional<std::string> string(std::string_view name);
  // One that cannot be left out.
  std::string required_string(std::string_view name);
  std::optional<std::string> word(std::string_view name, std::initializer_list<std::string_view> known);
  std::optional<std::vector<std::string>> strings(std::string_view name, std::size_t most);
  std::optional<std::vector<std::int64_t>> integers(std::string_view name, std::int64_t low, std::int64_t high,
                                                    std::size_t most);
  // A member that is an object.
  std::optional<Fields> object(std::string_view name);

  // Members that are taken without a look, for their names alone.
  void ignore(std::initializer_list<std::string_view> names);
  // A member that is only fine if absent or null.
  void refuse_if_given(std::string_view name, const std::string& why);
  // A member that has to be this, for instance false, where given.
  // (Of the bool alone: {"text"} must not become one.)
  template <std::same_as<bool> Bool>
  void only(std::string_view name, Bool value, const std::string& why) {
    only_boolean(name, value, why);
  }
  void only(std::string_view name, std::initializer_list<std::string_view> values, const std::string& why);
  // Errors: a member that none of the calls above named; with the nearest name known.
  void finish(bool allow_unknown) const;

  // Of the object itself.
  std::string own_path() const { return path_.substr(0, path_.empty() ? 0 : path_.size() - 1); }
  // For errors: of a long name, its beginning.
  std::string path_of(std::string_view name) const;

 private:
  void only_boolean(std::string_view name, bool value, const std::string& why);
  const chat::Dict& dict_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// "a string", "an object": what was found, in errors.
std::string kind_of(const chat::Value& value);

// The word of `known` with the fewest edits from `word`; nothing if none is near, or if it is longer than any name.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace m3::server
