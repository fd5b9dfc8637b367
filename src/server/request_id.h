#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace m3::server {

// The id a client gave, if it is one word of at most 128 letters, digits and "-_.:"; else a new one of 32 hex digits.
std::string request_id(std::optional<std::string_view> given);

// 24 random hex digits, for ids of replies and calls.
std::string random_id();

}  // namespace m3::server
