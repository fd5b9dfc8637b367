// Id lists as users bring them: text, or numpy's .npy.
#include <charconv>
#include <cstring>
#include <limits>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/cli/common.h"

namespace m3::cli {

namespace {

constexpr std::string_view npy_magic("\x93NUMPY", 6);
constexpr std::size_t size_limit = std::size_t{256} << 20;

// The text between `key': ` and the next comma at the same level of a .npy header (a Python dict literal).
std::string_view header_value(std::string_view header, std::string_view key, const std::string& origin) {
  const std::string quoted = fmt::format("'{}':", key);
  const std::size_t at = header.find(quoted);
  if (at == std::string_view::npos) fail("{}: the .npy header lacks '{}'", origin, key);
  std::string_view value = header.substr(at + quoted.size());
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  const std::size_t end = value.starts_with('(') ? value.find(')') + 1 : value.find_first_of(",}");
  if (end == 0 || end == std::string_view::npos) fail("{}: the .npy header is cut off after '{}'", origin, key);
  return value.substr(0, end);
}

template <typename T>
std::vector<std::int32_t> convert(std::string_view data, const std::string& origin) {
  std::vector<std::int32_t> ids;
  ids.reserve(data.size() / sizeof(T));
  for (std::size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T value{};
    std::memcpy(&value, data.data() + at, sizeof(T));
    if (!std::in_range<std::int32_t>(value) || value < T{0})
      fail("{}: id {} at index {} is not a token id", origin, value, at / sizeof(T));
    ids.push_back(static_cast<std::int32_t>(value));
  }
  return ids;
}

std::vector<std::int32_t> parse_npy(std::string_view bytes, const std::string& origin) {
  if (bytes.size() < 10) fail("{}: the .npy header is cut off", origin);
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(bytes[at])); };
  std::size_t header_size = byte(8) | byte(9) << 8;
  std::size_t header_at = 10;
  if (byte(6) >= 2) {
    if (bytes.size() < 12) fail("{}: the .npy header is cut off", origin);
    header_size |= byte(10) << 16 | byte(11) << 24;
    header_at = 12;
  }
  if (header_size > bytes.size() - header_at) fail("{}: the .npy header is cut off", origin);
  const std::string_view header = bytes.substr(header_at, header_size);
  const std::string_view data = bytes.substr(header_at + header_size);

  std::string_view type = header_value(header, "descr", origin);
  if (type.size() > 2 && type.front() == '\'') type = type.substr(1, type.size() - 2);
  std::string_view shape = header_value(header, "shape", origin);
  std::size_t count = 0;
  const char* end = shape.data() + shape.size();
  const auto parsed = std::from_chars(shape.data() + 1, end, count);
  const std::string_view tail(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  if (!shape.starts_with('(') || parsed.ec != std::errc() || (tail != ",)" && tail != ")")) {
    fail("{}: the array has shape {}; ids are one-dimensional", origin, shape);
  }
  const auto expect = [&](std::size_t size) {
    if (data.size() / size != count || data.size() % size != 0)
      fail("{}: {} elements of {} bytes are announced, {} bytes follow", origin, count, size, data.size());
  };
  if (type == "<i4") return expect(4), convert<std::int32_t>(data, origin);
  if (type == "<i8") return expect(8), convert<std::int64_t>(data, origin);
  if (type == "<u4") return expect(4), convert<std::uint32_t>(data, origin);
  if (type == "<u8") return expect(8), convert<std::uint64_t>(data, origin);
  if (type == "<u2") return expect(2), convert<std::uint16_t>(data, origin);
  if (type == "<i2") return expect(2), convert<std::int16_t>(data, origin);
  fail("{}: elements of type {}; ids are little-endian integers of 2, 4 or 8 bytes", origin, type);
}

}  // namespace

std::vector<std::int32_t> parse_token_ids(std::string_view bytes, const std::string& origin) {
  if (bytes.starts_with(npy_magic)) return parse_npy(bytes, origin);
  constexpr std::string_view space = " \t\r\n";
  std::vector<std::int32_t> ids;
  for (std::size_t at = bytes.find_first_not_of(space); at != std::string_view::npos;
       at = bytes.find_first_not_of(space, at)) {
    const std::size_t end = std::min(bytes.find_first_of(space, at), bytes.size());
    std::int32_t id = -1;
    const auto parsed = std::from_chars(bytes.data() + at, bytes.data() + end, id);
    if (parsed.ec != std::errc() || parsed.ptr != bytes.data() + end || id < 0) {
      const std::string_view word = bytes.substr(at, std::min<std::size_t>(end - at, 20));
      std::string shown;
      for (const char c : word)
        shown += c >= 0x20 && c < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      fail("{}: \"{}\" at byte {} is not a token id; write whole numbers from 0 separated by white space", origin,
           shown, at);
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::vector<std::int32_t> read_token_ids(const std::string& path) {
  const std::string bytes = path == "-" ? read_standard_input(size_limit) : read_text_input(path, size_limit);
  return parse_token_ids(bytes, path == "-" ? "standard input" : path);
}

}  // namespace m3::cli
