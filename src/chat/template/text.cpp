#include "src/chat/template/text.h"

#include <algorithm>

namespace m3::chat {

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_ = origin;
  } else if (last() != origin) {
    switches_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::append(const Text& other) { append(other, 0, other.size()); }

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  if (other.switches_.empty()) {
    append(std::string_view(other.bytes_).substr(begin, end - begin), other.first_);
    return;
  }
  auto next = std::upper_bound(other.switches_.begin(), other.switches_.end(), begin);
  std::size_t run = static_cast<std::size_t>(next - other.switches_.begin());
  while (begin < end) {
    const std::size_t stop = run < other.switches_.size() ? std::min(end, other.switches_[run]) : end;
    const Origin origin = run % 2 == 0 ? other.first_ : other_of(other.first_);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), origin);
    begin = stop;
    ++run;
  }
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

Origin Text::origin_at(std::size_t byte) const {
  const auto run = std::upper_bound(switches_.begin(), switches_.end(), byte) - switches_.begin();
  return run % 2 == 0 ? first_ : other_of(first_);
}

}  // namespace m3::chat
