// Time by operation, each with the work that it must do at least: what `m3 bench --profile` prints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/ops/ops.h"

namespace m3::engine {

class Profile {
 public:
  struct Entry {
    std::string operation;  // "linear [9856, 6144]", "attend_sparse", ...
    std::int64_t calls = 0;
    double seconds = 0;
    double bytes = 0;       // that must be read: weights as stored, K, V and index-K once a sequence, activations
    double operations = 0;  // multiplications and additions of products, useful ones only
  };

  bool enabled = true;  // otherwise passes run as if nobody looked

  void add(const std::string& operation, double seconds, double bytes, double operations);
  void clear() { entries_.clear(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their first calls

 private:
  std::vector<Entry> entries_;
};

// A backend that does what `backend` does and tells `profile` about each call. A device tells the times itself, at the
// end of a pass, or is waited for before the clock is read. Its results are the same. Where the host cannot read the routing, the expected number of different
// experts counts.
std::unique_ptr<ops::Backend> make_profiled(std::unique_ptr<ops::Backend> backend, Profile& profile);

}  // namespace m3::engine
