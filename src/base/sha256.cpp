#include "src/base/sha256.h"

#include <openssl/evp.h>

#include <memory>

#include "src/base/error.h"

namespace m3 {

Sha256 sha256(std::string_view head, std::span<const std::byte> bytes) {
  Sha256 digest{};
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), head.data(), head.size()) != 1 ||
      EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) {
    fail_internal("SHA-256 is not available");
  }
  return digest;
}

}  // namespace m3
