// Which way up a picture is: the EXIF tag that cameras write instead of turning the pixels.
#pragma once

#include <cstddef>
#include <span>

#include "src/vision/patches.h"
#include "src/vision/sizing.h"

namespace m3::vision {

// 1..8 of an EXIF block (TIFF, with or without "Exif\0\0" before it); 1, upright, where there is none or it makes no
// sense.
int exif_orientation(std::span<const std::byte> exif);

// Width and height change places.
inline bool turns_sideways(int orientation) { return orientation >= 5; }
inline Size upright(Size stored, int orientation) {
  return turns_sideways(orientation) ? Size{stored.height, stored.width} : stored;
}

// The picture as it is to be looked at.
Picture turn_upright(Picture picture, int orientation);

}  // namespace m3::vision
