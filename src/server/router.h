// Which handler answers a path. New routes are added in routes.cpp, where add_routes() lists every one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/server/errors.h"
#include "src/server/http.h"

namespace m3::server {

// Runs on a worker thread and may take its time, except at_once. What it throws becomes an error reply in the route's style.
using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

struct Route {
  std::string method;  // "GET" also answers HEAD
  std::string path;    // a segment {name} matches anything but /; request().path_values has it without its %XX
  Handler handler;
  ErrorStyle style = ErrorStyle::openai;
  bool open = false;           // needs no API key
  bool while_loading = false;  // answers before the model is there
  bool takes_rest = false;     // a last segment {name} takes all the rest, with its /
  bool at_once = false;        // the handler is quick and runs on the network's thread: it waits for no other request
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }
  // The route of a request, whose path_values it fills. Errors (ApiError): 404, or 405 with another method.
  const Route& find(HttpRequest& request) const;
  // For errors before a route is known: the style of the path.
  ErrorStyle style_of(const std::string& path) const;
  // "GET, POST" of a path, for OPTIONS; empty: unknown.
  std::string methods_of(const std::string& path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace m3::server
