// Errors of a translated request, under the names that the client used.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/server/errors.h"

namespace m3::server {

class FieldNames {
 public:
  // What is called `chat_path` in the chat body stands at `given_path` in the client's.
  void add(std::string chat_path, std::string given_path) {
    names_.emplace_back(std::move(chat_path), std::move(given_path));
  }
  // What a chat's errors call `chat_words`, the client's API calls `given_words`.
  void add_words(std::string chat_words, std::string given_words) {
    words_.emplace_back(std::move(chat_words), std::move(given_words));
  }
  // The longest known path that the error line begins with is replaced, then the words behind it, each once.
  ApiError translate(const ApiError& error) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_, words_;
};

}  // namespace m3::server
