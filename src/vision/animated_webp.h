// The frames of an animated WebP file, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/vision/decode_control.h"
#include "src/vision/sizing.h"

struct WebPAnimDecoder;

namespace m3::vision {

class AnimatedWebp {
 public:
  // `bytes` must outlive this; `pixels` bounds the canvas; `control` hears of its memory. A file with a still picture
  // has one frame. Errors (input): damaged, cut short, too large.
  AnimatedWebp(std::span<const std::byte> bytes, std::int64_t pixels, const DecodeControl& control);

  const Size& size() const { return size_; }
  int frames() const { return frames_; }
  // Seconds from the beginning at which each frame appears.
  const std::vector<double>& starts() const { return starts_; }
  // The whole canvas on white after the next frame; frames() calls at most. Errors (input): damaged.
  Picture next();

 private:
  struct Delete {
    void operator()(WebPAnimDecoder* decoder) const;
  };
  std::unique_ptr<WebPAnimDecoder, Delete> decoder_;
  Size size_;
  int frames_ = 0;
  std::int64_t milliseconds_ = 0;
  std::vector<double> starts_;
};

}  // namespace m3::vision
