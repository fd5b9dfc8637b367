// What a decoder asks of whoever waits for it.
#pragma once

#include <cstdint>
#include <functional>

#include "src/vision/sizing.h"

namespace m3::vision {

// Each may throw, which ends the decoding with that exception; each may be empty. A decoder keeps no copy: the control
// must outlive it.
struct DecodeControl {
  // Called before anything long: between rows, passes, frames and packets.
  std::function<void()> check = {};
  // Called with the size that a picture's header declares, before anything is decoded and before reserve(): upright,
  // unless its orientation stands behind the pixels. Called again for the same file it says the same.
  std::function<void(Size size)> sized = {};
  // Called with the declared sizes known, before memory is taken for them: the bytes that decoding takes at its peak,
  // the decoded picture or frames among them, the file not. Called again for the same file it says the same.
  std::function<void(std::int64_t bytes)> reserve = {};

  void keep_on() const {
    if (check) check();
  }
  void declare(Size size) const {
    if (sized) sized(size);
  }
  void need(std::int64_t bytes) const {
    if (reserve) reserve(bytes);
  }
};

inline const DecodeControl no_control = {};

}  // namespace m3::vision
