#include "src/server/field_names.h"

#include <string_view>

namespace m3::server {

ApiError FieldNames::translate(const ApiError& error) const {
  const std::string line = error.what();
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& name : names_) {
    const std::size_t size = name.first.size();
    const bool begins = line.starts_with(name.first) && line.size() > size &&
                        std::string_view(".[:").find(line[size]) != std::string_view::npos;
    if (begins && (best == nullptr || size > best->first.size())) best = &name;
  }
  if (best == nullptr) return error;
  std::string renamed = line.substr(best->first.size());
  for (const auto& [chat_words, given_words] : words_) {
    const std::size_t at = renamed.find(chat_words);
    if (at != std::string::npos) renamed.replace(at, chat_words.size(), given_words);
  }
  renamed.insert(0, best->second);
  return {error.status, renamed, param_of(renamed), error.code};
}

}  // namespace m3::server
