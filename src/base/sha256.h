// SHA-256, by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace m3 {

using Sha256 = std::array<unsigned char, 32>;

// Of `head` and then `bytes`. Errors (internal): the library has none.
Sha256 sha256(std::string_view head, std::span<const std::byte> bytes = {});

}  // namespace m3
