#include "src/server/api_keys.h"

#include <openssl/crypto.h>

#include <array>

namespace m3::server {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(sha256(key));
}

bool ApiKeys::allow(const HttpRequest& request) const {
  if (digests_.empty()) return true;
  std::array<std::string_view, 2> shown;
  if (const auto header = request.header("authorization")) {
    constexpr std::string_view scheme = "bearer ";
    bool bearer = header->size() > scheme.size();
    for (std::size_t i = 0; bearer && i < scheme.size(); ++i) {
      bearer = std::tolower(static_cast<unsigned char>((*header)[i])) == scheme[i];
    }
    if (bearer) shown[0] = header->substr(scheme.size());
  }
  // Anthropic's clients send this one, and some both: the right one of them counts.
  if (const auto key = request.header("x-api-key")) shown[1] = *key;
  int found = 0;
  for (const std::string_view key : shown) {
    const Sha256 given = sha256(key);
    for (const Sha256& known : digests_) found |= CRYPTO_memcmp(known.data(), given.data(), given.size()) == 0 ? 1 : 0;
  }
  return found != 0;
}

}  // namespace m3::server
