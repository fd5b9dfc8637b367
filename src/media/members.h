// A member of a JSON object; one that is null is as absent.
#pragma once

#include <string_view>

#include "src/chat/template/value.h"

namespace m3::media {

inline const chat::Value* member(const chat::Value& object, std::string_view name) {
  const chat::Value* value = object.as_dict().find(name);
  return value == nullptr || value->is(chat::Kind::none) ? nullptr : value;
}

}  // namespace m3::media
