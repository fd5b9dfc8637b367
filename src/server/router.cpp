#include "src/server/router.h"

#include <fmt/format.h>

namespace m3::server {
namespace {

bool matches(std::string_view pattern, std::string_view path, std::map<std::string, std::string>* values) {
  while (!pattern.empty() && !path.empty()) {
    const std::size_t pattern_end = std::min(pattern.find('/', 1), pattern.size());
    const std::size_t path_end = std::min(path.find('/', 1), path.size());
    const std::string_view expected = pattern.substr(0, pattern_end), given = path.substr(0, path_end);
    if (expected.starts_with("/{")) {
      if (given.size() < 2 || given[0] != '/') return false;
      if (values != nullptr) (*values)[std::string(expected.substr(2, expected.size() - 3))] = given.substr(1);
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
    if (!matches(route.path, request.path, &values)) continue;
    known = true;
    if (!allows(route, request.method)) continue;
    request.path_values = std::move(values);
    return route;
  }
  if (known) {
    throw ApiError(405,
                   fmt::format("{} {}: this path answers {}", request.method, request.path, methods_of(request.path)));
  }
  throw ApiError(
      404, fmt::format("{} {}: no such path here; docs/server.md lists what is served", request.method, request.path));
}

ErrorStyle Router::style_of(const std::string& path) const {
  for (const Route& route : routes_) {
    if (matches(route.path, path, nullptr)) return route.style;
  }
  return ErrorStyle::openai;
}

std::string Router::methods_of(const std::string& path) const {
  std::string methods;
  for (const Route& route : routes_) {
    if (!matches(route.path, path, nullptr)) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.method;
  }
  return methods;
}

}  // namespace m3::server
