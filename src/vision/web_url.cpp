// Which URLs and addresses may be asked.
#include <algorithm>
#include <charconv>

#include "src/base/error.h"
#include "src/vision/fetch.h"

namespace m3::vision {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool is_host_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == ':';
}

// Into a request line: no spaces, no control characters; other bytes as %XX.
std::string clean_target(std::string_view target) {
  std::string result;
  for (const char c : target) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f) {
      result += fmt::format("%{:02X}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

struct Network {
  std::array<unsigned char, 4> address;
  int bits;
};
constexpr std::array<Network, 15> not_public = {{
    {{0, 0, 0, 0}, 8},
    {{10, 0, 0, 0}, 8},
    {{100, 64, 0, 0}, 10},
    {{127, 0, 0, 0}, 8},
    {{169, 254, 0, 0}, 16},
    {{172, 16, 0, 0}, 12},
    {{192, 0, 0, 0}, 24},
    {{192, 0, 2, 0}, 24},
    {{192, 88, 99, 0}, 24},
    {{192, 168, 0, 0}, 16},
    {{198, 18, 0, 0}, 15},
    {{198, 51, 100, 0}, 24},
    {{203, 0, 113, 0}, 24},
    {{224, 0, 0, 0}, 4},
    {{240, 0, 0, 0}, 4},
}};

std::uint32_t number(const std::array<unsigned char, 4>& a) {
  return std::uint32_t{a[0]} << 24 | std::uint32_t{a[1]} << 16 | std::uint32_t{a[2]} << 8 | a[3];
}

}  // namespace

WebUrl parse_web_url(std::string_view url) {
  WebUrl result;
  const std::string scheme = lower(url.substr(0, url.find(':')));
  if (scheme != "http" && scheme != "https") fail("not an http: or https: URL");
  result.secure = scheme == "https";
  url.remove_prefix(scheme.size() + 1);
  if (!url.starts_with("//")) fail("a URL without // before the host");
  url.remove_prefix(2);
  url = url.substr(0, url.find('#'));
  const std::size_t end = std::min(url.find_first_of("/?\\"), url.size());
  std::string_view authority = url.substr(0, end);
  std::string target = clean_target(url.substr(end));
  if (!target.starts_with('/')) target.insert(target.begin(), '/');
  result.target = std::move(target);

  // Readers differ on what "a@b" and "a\b" mean, and that is how a check is talked round.
  if (authority.find('@') != std::string_view::npos) fail("a URL with a user's name");
  if (url.find('\\') != std::string_view::npos) fail("a URL with a backslash");
  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) fail("a URL with [ and no ]");
    result.host = lower(authority.substr(1, close - 1));
    authority.remove_prefix(close + 1);
    if (!authority.empty() && !authority.starts_with(':')) fail("a URL with letters between ] and the port");
    port = authority.substr(std::min<std::size_t>(authority.size(), 1));
  } else {
    const std::size_t colon = authority.find(':');
    result.host = lower(authority.substr(0, colon));
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
    if (result.host.find(':') != std::string::npos) fail("a URL with two ports");
  }
  if (result.host.ends_with('.')) result.host.pop_back();
  if (result.host.empty() || result.host.size() > 253 || !std::ranges::all_of(result.host, is_host_letter)) {
    fail("a URL without a host that could be looked up");
  }
  result.port = result.secure ? 443 : 80;
  if (!port.empty()) {
    const auto [last, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
    if (error != std::errc() || last != port.data() + port.size() || result.port == 0) fail("a URL with an odd port");
  }
  return result;
}

WebUrl resolve_redirect(const WebUrl& from, std::string_view location) {
  const std::size_t colon = location.find(':');
  const bool whole = colon != std::string_view::npos && location.find_first_of("/?#") > colon;
  if (whole) return parse_web_url(location);
  if (location.starts_with("//")) return parse_web_url((from.secure ? "https:" : "http:") + std::string(location));
  WebUrl result = from;
  location = location.substr(0, location.find('#'));
  if (location.starts_with('/')) {
    result.target = clean_target(location);
  } else if (location.starts_with('?')) {
    result.target = from.target.substr(0, from.target.find('?')) + clean_target(location);
  } else if (!location.empty()) {
    const std::string path = from.target.substr(0, from.target.find('?'));
    result.target = path.substr(0, path.rfind('/') + 1) + clean_target(location);
  }
  return result;
}

namespace {

// `word` as a URL's authority.
WebUrl parse_host(const std::string& word, const char* what) {
  if (word.find("://") != std::string::npos || word.find_first_of("/?#@") != std::string::npos) {
    fail("a URL or a part of one; write {}", what);
  }
  if (word.find('*') != std::string::npos) fail("a * stands alone; example.org allows all hosts below it too");
  try {
    return parse_web_url("http://" + word + "/");
  } catch (const Error& error) {
    fail("no host that could be looked up; write {}", what);
  }
}

}  // namespace

std::string check_domain(const std::string& word) {
  constexpr const char* what = "a host alone, such as example.org";
  const bool v6 = std::ranges::count(word, ':') > 1;
  const WebUrl url = parse_host(v6 && !word.starts_with('[') ? "[" + word + "]" : word, what);
  if (!v6 && word.find(':') != std::string::npos) fail("has a port; write {}", what);
  return url.host;
}

std::string check_private_host(const std::string& word) {
  constexpr const char* what = "HOST:PORT, such as 10.0.0.5:8080 or [fd00::5]:8080";
  const std::size_t colon = word.rfind(':');
  const WebUrl url = parse_host(word, what);
  const bool port = colon != std::string::npos && colon + 1 < word.size() &&
                    word.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (!port) fail("has no port; write {}", what);
  return fmt::format("{}:{}", url.host, url.port);
}

bool domain_allowed(std::string_view host, const std::vector<std::string>& domains) {
  if (domains.empty()) return true;
  return std::ranges::any_of(domains, [&](const std::string& domain) {
    const std::string name = lower(domain);
    return host == name ||
           (host.size() > name.size() && host.ends_with(name) && host[host.size() - name.size() - 1] == '.');
  });
}

bool is_public_v4(const std::array<unsigned char, 4>& address) {
  return std::ranges::none_of(not_public, [&](const Network& network) {
    const int rest = 32 - network.bits;
    return number(address) >> rest == number(network.address) >> rest;
  });
}

bool is_public_v6(const std::array<unsigned char, 16>& a) {
  const auto begins = [&](std::initializer_list<unsigned char> bytes) {
    return std::equal(bytes.begin(), bytes.end(), a.begin());
  };
  // ::ffff:0:0/96 and 64:ff9b::/96 stand for the IPv4 address at their end.
  if (begins({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}) || begins({0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0})) {
    return is_public_v4({a[12], a[13], a[14], a[15]});
  }
  if ((a[0] & 0xe0) != 0x20) return false;                       // all that is assigned lies in 2000::/3
  if (begins({0x20, 0x01}) && (a[2] & 0xfe) == 0) return false;  // 2001::/23: tunnels and tests
  if (begins({0x20, 0x01, 0x0d, 0xb8})) return false;            // documentation
  if (begins({0x20, 0x02})) return false;                        // 6to4 tunnels
  return !(begins({0x3f, 0xff}) && (a[2] & 0xf0) == 0);          // documentation
}

}  // namespace m3::vision
