// Keys that callers must show: "Authorization: Bearer KEY", or "x-api-key: KEY" as Anthropic's clients send it.
#pragma once

#include <string>
#include <vector>

#include "src/base/sha256.h"
#include "src/server/http.h"

namespace m3::server {

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);
  // Whether the request shows one of them, or none is asked for. The time it takes tells nothing about the keys: the
  // digests of all are compared to the end.
  bool allow(const HttpRequest& request) const;

 private:
  std::vector<Sha256> digests_;
};

}  // namespace m3::server
