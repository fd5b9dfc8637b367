// Words for the person at the terminal.
#pragma once

#include <cstdio>
#include <string>

namespace m3 {

// To standard error. One that cannot be written (closed, full disk) is no reason to fail the work.
inline void write_error(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace m3
