#include "src/server/router.h"

#include <fmt/format.h>

#include <charconv>

#include "src/tokenizer/utf8.h"

namespace m3::server {
namespace {

// "%2F" as "/"; what is no escape stays.
std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += escape ? static_cast<char>(byte) : text[i];
    if (escape) i += 2;
  }
  return to_valid_utf8(out);
}

bool matches(const Route& route, std::string_view path, std::map<std::string, std::string>* values) {
  std::string_view pattern = route.path;
  while (!pattern.empty() && !path.empty()) {
    const std::size_t pattern_end = std::min(pattern.find('/', 1), pattern.size());
    const bool rest = route.takes_rest && pattern_end == pattern.size();
    const std::size_t path_end = rest ? path.size() : std::min(path.find('/', 1), path.size());
    const std::string_view expected = pattern.substr(0, pattern_end), given = path.substr(0, path_end);
    if (expected.starts_with("/{")) {
      if (given.size() < 2 || given[0] != '/') return false;
      if (values != nullptr) (*values)[std::string(expected.substr(2, expected.size() - 3))] = decoded(given.substr(1));
    } else if (expected != given) {
      return false;
    }
    pattern.remove_prefix(pattern_end);
    path.remove_prefix(path_end);
  }
  return pattern.empty() && path.empty();
}

bool allows(const Route& route, const std::string& method) {
  return route.method == method || (route.method == "GET" && method == "HEAD");
}

}  // namespace

const Route& Router::find(HttpRequest& request) const {
  bool known = false;
  for (const Route& route : routes_) {
    std::map<std::string, std::string> values;
    if (!matches(route, request.path, &values)) continue;
    known = true;
    if (!allows(route, request.method)) continue;
    request.path_values = std::move(values);
    return route;
  }
  if (known) {
    throw ApiError(405, fmt::format("{} {}: this path answers {}", request.method, shortened(request.path),
                                    methods_of(request.path)));
  }
  throw ApiError(404, fmt::format("{} {}: no such path here; docs/server.md lists what is served", request.method,
                                  shortened(request.path)));
}

ErrorStyle Router::style_of(const std::string& path) const {
  for (const Route& route : routes_) {
    if (matches(route, path, nullptr)) return route.style;
  }
  return ErrorStyle::openai;
}

std::string Router::methods_of(const std::string& path) const {
  std::string methods;
  for (const Route& route : routes_) {
    if (!matches(route, path, nullptr)) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.method;
  }
  return methods;
}

}  // namespace m3::server
