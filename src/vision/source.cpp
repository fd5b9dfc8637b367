#include "src/vision/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "src/base/error.h"

namespace m3::vision {

namespace {

constexpr std::size_t shown_letters = 100;

// Schemes are case-insensitive.
bool has_scheme(std::string_view url, std::string_view scheme) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return url.size() > scheme.size() && url[scheme.size()] == ':' &&
         std::ranges::equal(url.substr(0, scheme.size()), scheme, {}, lower);
}

constexpr std::array<int, 256> make_base64_values() {
  std::array<int, 256> values{};
  values.fill(-1);
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < letters.size(); ++i) {
    values[static_cast<unsigned char>(letters[i])] = static_cast<int>(i);
  }
  values['-'] = 62;
  values['_'] = 63;
  return values;
}
constexpr auto base64_values = make_base64_values();

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

[[noreturn]] void too_large(std::int64_t limit) { fail("more than the {} bytes allowed", limit); }

// An open file, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

bool is_below(const std::filesystem::path& path, const std::filesystem::path& root) {
  const auto [at, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return at == root.end() && path != root;
}

std::vector<std::byte> load(std::string_view url, const SourceOptions& options, std::int64_t limit) {
  if (is_data_url(url)) return decode_data_url(url, limit, options.received);
  if (has_scheme(url, "file")) return read_local_file(url, options.local_root, limit, options.received);
  if (has_scheme(url, "http") || has_scheme(url, "https")) {
    if (!options.web) fail("pictures and videos from the web are not allowed here; send them as data: URLs");
    FetchOptions fetching = options.fetch;
    fetching.received = options.received;
    return fetch(std::string(url), fetching, limit);
  }
  fail("not a data:, http:, https: or file: URL");
}

}  // namespace

bool is_data_url(std::string_view url) { return has_scheme(url, "data"); }

std::string web_host(std::string_view url) {
  if (!has_scheme(url, "http") && !has_scheme(url, "https")) return {};
  try {
    const WebUrl parts = parse_web_url(url);
    return fmt::format("{}:{}", parts.host, parts.port);
  } catch (const Error&) {
    return {};  // load_source() says what is wrong
  }
}

std::string short_url(std::string_view url) {
  if (has_scheme(url, "data")) url = url.substr(0, std::min(url.find(','), shown_letters));
  std::string text(url.substr(0, shown_letters));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  const bool cut = url.size() > shown_letters || has_scheme(url, "data");
  return cut ? text + "…" : text;
}

std::vector<std::byte> decode_base64(std::string_view text) {
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t group = 0;
  int count = 0;
  bool ended = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_space(c)) continue;
    if (c == '=') {
      ended = true;
      continue;
    }
    const int value = base64_values[static_cast<unsigned char>(c)];
    if (value < 0 || ended) fail("not base64 at character {}", i);
    group = group << 6 | static_cast<std::uint32_t>(value);
    if (++count == 4) {
      for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<std::byte>(group >> shift & 0xff));
      group = 0;
      count = 0;
    }
  }
  if (count == 1) fail("base64 that is cut short");
  if (count >= 2) bytes.push_back(static_cast<std::byte>(group >> (count == 2 ? 4 : 10) & 0xff));
  if (count == 3) bytes.push_back(static_cast<std::byte>(group >> 2 & 0xff));
  return bytes;
}

std::string decode_percent(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) fail("a % without two hexadecimal digits at character {}", i);
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

std::vector<std::byte> decode_data_url(std::string_view url, std::int64_t limit,
                                       const std::function<void(std::int64_t)>& received) {
  const std::size_t comma = url.find(',');
  if (!has_scheme(url, "data") || comma == std::string_view::npos) fail("a data: URL without a comma before its data");
  const std::string_view head = url.substr(5, comma - 5);
  const std::string_view text = url.substr(comma + 1);
  const bool base64 = head.size() >= 7 && has_scheme(std::string(head.substr(head.size() - 6)) + ":", "base64") &&
                      head[head.size() - 7] == ';';  // in any letters, as the scheme
  // Before any decoding: base64 takes four characters for three bytes, and line ends beside them.
  if (static_cast<std::int64_t>(text.size() / 4) > limit / 3 + limit / 16 + 1 && base64) too_large(limit);
  if (received) received(static_cast<std::int64_t>(base64 ? text.size() / 4 * 3 + 3 : text.size()));
  std::vector<std::byte> bytes;
  if (base64) {
    bytes = text.find('%') == std::string_view::npos ? decode_base64(text) : decode_base64(decode_percent(text));
  } else {
    bytes = bytes_of(decode_percent(text));
  }
  if (static_cast<std::int64_t>(bytes.size()) > limit) too_large(limit);
  if (bytes.empty()) fail("a data: URL without data");
  return bytes;
}

std::vector<std::byte> read_local_file(std::string_view url, const std::filesystem::path& root, std::int64_t limit,
                                       const std::function<void(std::int64_t)>& received) {
  if (root.empty()) fail("local files are not allowed here; send the data itself as a data: URL");
  std::string_view path = url.substr(std::min<std::size_t>(url.size(), 5));
  if (path.starts_with("//localhost/")) path.remove_prefix(11);
  if (path.starts_with("//")) path.remove_prefix(2);
  if (!path.starts_with('/')) fail("a file: URL names an absolute path, file:///folder/file");
  const std::string name = decode_percent(path);
  const auto refuse = [] { fail("no such file below the folder that is allowed"); };
  if (name.find('\0') != std::string::npos) refuse();

  // Opened first and looked at then, so that nobody can exchange it in between. Pipes must not hold this up.
  const Descriptor file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  std::error_code error;
  const auto real_root = std::filesystem::canonical(root, error);
  if (error) fail("the folder that is allowed for local files cannot be read: {}", error.message());
  struct ::stat status = {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse();
  const auto real = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file.get()), error);
  if (error || !is_below(real, real_root)) refuse();
  if (status.st_size > limit) too_large(limit);

  if (received) received(status.st_size);
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ::ssize_t count = ::read(file.get(), bytes.data() + have, bytes.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    have += static_cast<std::size_t>(count);
  }
  bytes.resize(have);
  return bytes;
}

std::vector<std::byte> load_source(std::string_view url, const SourceOptions& options, std::int64_t limit) {
  try {
    return load(url, options, limit);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::busy) throw;  // received() says so, and of no URL
    throw Error(error.kind(), fmt::format("{}: {}", short_url(url), error.what()));
  }
}

}  // namespace m3::vision
