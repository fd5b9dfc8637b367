// Pictures and videos from the web, for requests of people who must not reach what only this machine can.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace m3::vision {

struct FetchOptions {
  // Hosts that may be asked, with all below them: "example.org" allows pics.example.org. Empty: every public one.
  std::vector<std::string> domains;
  // "HOST:PORT" of servers that may lie in a private network. No other private, loopback or link-local address is ever
  // connected to, whatever a name or a redirect leads to.
  std::vector<std::string> private_hosts;
  double seconds = 20;  // for everything, redirects included
  int redirects = 5;
  std::function<bool()> stop;  // polled some times a second; true ends it with an error
  // Called with the bytes that have come, as they come; what it throws ends the fetch.
  std::function<void(std::int64_t)> received;
};

// The body of a GET. Certificates are verified. The address that was checked is the one connected to. Errors (input),
// one line: a URL with a user's name or an odd port, a host that is not allowed, an address that is not public, too many
// redirects, no answer in time, a status other than 200, more than `limit` bytes, no bytes.
std::vector<std::byte> fetch(const std::string& url, const FetchOptions& options, std::int64_t limit);

// "https://host:port/target?query" in its parts. Errors (input): malformed.
struct WebUrl {
  bool secure = false;
  std::string host;  // lower case; without brackets where it is an IPv6 address
  std::uint16_t port = 0;
  std::string target = "/";  // with the query, without the fragment
};
WebUrl parse_web_url(std::string_view url);
// `location` of a redirect, which may be relative, seen from `from`.
WebUrl resolve_redirect(const WebUrl& from, std::string_view location);

// A word of FetchOptions::domains or ::private_hosts as they are compared: lower case, no brackets. Errors (input),
// what to write instead: nothing that a URL's host, or host and port, could be equal to.
std::string check_domain(const std::string& word);
std::string check_private_host(const std::string& word);

bool domain_allowed(std::string_view host, const std::vector<std::string>& domains);

// Whether an address is one of the public internet: not private, shared, loopback, link-local, reserved, for
// documentation or multicast, nor an IPv6 address that carries or tunnels to an IPv4 one that is not.
bool is_public_v4(const std::array<unsigned char, 4>& address);
bool is_public_v6(const std::array<unsigned char, 16>& address);

}  // namespace m3::vision
