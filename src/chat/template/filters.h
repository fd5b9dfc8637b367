// Shared by the filter files.
#pragma once

#include <span>

#include "src/chat/template/builtins.h"

namespace m3::chat {

std::span<const FilterEntry> text_filters();
std::span<const FilterEntry> number_filters();
std::span<const FilterEntry> sequence_filters();

// soft_str(): the text of anything.
inline Text soft_text(const Value& value) { return to_text(value); }
// An argument that was given and is not none.
inline bool given(const std::optional<Value>& value) { return value && !value->is(Kind::none); }

}  // namespace m3::chat
