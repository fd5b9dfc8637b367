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
  // The longest known path that the error line begins with is replaced.
  ApiError translate(const ApiError& error) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace m3::server
