// Strings that remember, byte by byte, whether they came from the template or from a message.
//
// Special tokens may be recognised only in what the template wrote, so every string operation of the interpreter
// carries the origin along; nothing is decided by looking at the finished text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace m3::chat {

enum class Origin : std::uint8_t { message, template_text };

class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)), first_(origin) {}

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other);
  // Appends bytes [begin, end) of other.
  void append(const Text& other, std::size_t begin, std::size_t end);
  // Bytes [begin, end).
  Text slice(std::size_t begin, std::size_t end) const;

  Origin origin_at(std::size_t byte) const;
  bool has_one_origin() const { return switches_.empty(); }

  // Calls visit(bytes, origin) for each maximal run of one origin, in order.
  template <typename Visit>
  void for_each_run(Visit&& visit) const {
    std::size_t begin = 0;
    Origin origin = first_;
    for (std::size_t i = 0; i <= switches_.size(); ++i) {
      const std::size_t end = i < switches_.size() ? switches_[i] : bytes_.size();
      if (end > begin) visit(std::string_view(bytes_).substr(begin, end - begin), origin);
      begin = end;
      origin = other_of(origin);
    }
  }

 private:
  static Origin other_of(Origin origin) { return origin == Origin::message ? Origin::template_text : Origin::message; }
  Origin last() const { return switches_.size() % 2 == 0 ? first_ : other_of(first_); }

  std::string bytes_;
  Origin first_ = Origin::template_text;
  std::vector<std::size_t> switches_;  // offsets, ascending, where the origin changes
};

}  // namespace m3::chat
