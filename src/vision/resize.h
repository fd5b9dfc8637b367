// Resizing: bicubic with antialiasing on 8 bits, equal bit for bit to torchvision's for uint8 tensors.
#pragma once

#include "src/vision/patches.h"

namespace m3::vision {

// Columns first, then rows, rounded to 8 bits in between; an axis that keeps its size is left alone. Pillow's filter
// differs by up to 2 levels on under 1 % of values: its weights have 22 bits. Errors (internal): a side below 1.
Picture resize(const Picture& picture, int width, int height);

}  // namespace m3::vision
