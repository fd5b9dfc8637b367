// JSON that the server writes. What it reads is chat::Value (src/chat/template/json.h), through Fields (fields.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace m3::server {

using Json = nlohmann::ordered_json;

// One line; what is not UTF-8 becomes U+FFFD.
inline std::string to_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace m3::server
