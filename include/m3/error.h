// What goes wrong, as one line for a person: what, where, what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace m3 {

enum class ErrorKind {
  usage,     // the call or the command line is wrong; programs exit with 2, servers answer 4xx
  input,     // a file, checkpoint or request has unusable content
  resource,  // memory, disk, or a file that cannot be opened or written
  internal,  // a fault of this program
  busy,      // the queue is full: the same call may succeed later; servers answer 503 with Retry-After
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace m3
