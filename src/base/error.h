// Throwing m3::Error with a formatted line.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "m3/error.h"

namespace m3 {

// Unusable input: a file, a tensor, a request. The common case.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::input, fmt::format(format, std::forward<Args>(args)...));
}

// A wrong call or command line; the program exits with 2.
template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...));
}

// Memory, disk or permission.
template <typename... Args>
[[noreturn]] void fail_resource(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::resource, fmt::format(format, std::forward<Args>(args)...));
}

// A broken promise inside this program; the line says where.
template <typename... Args>
[[noreturn]] void fail_internal(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::internal, "internal error: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace m3
