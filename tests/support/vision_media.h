// A golden case's pictures as requests carry them.
#pragma once

#include <vector>

#include "m3/request.h"
#include "tests/support/golden_case.h"

namespace m3::test {

inline std::vector<Media> media_of(const VisionCase& golden) {
  std::vector<Media> result;
  for (const VisionCase::Media& shown : golden.media) {
    const auto begin = golden.pixels.begin() + shown.first_pixel;
    result.push_back(
        {.kind = shown.video ? Media::Kind::video : Media::Kind::image,
         .t = shown.t,
         .h = shown.h,
         .w = shown.w,
         .pixels = std::make_shared<const std::vector<float>>(begin, begin + shown.patches() * golden.columns),
         .features = nullptr,
         .key = ""});
  }
  return result;
}

}  // namespace m3::test
