#include "src/cli/pixel_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/checkpoint/aligned_store.h"
#include "src/checkpoint/safetensors.h"

namespace m3::cli {

namespace {

constexpr std::int64_t most_patches = std::int64_t{1} << 24;

std::vector<std::int64_t> integers(const std::string& path, const StoredTensor& tensor) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.dtype == DType::i64) {
      std::memcpy(&values.emplace_back(), tensor.bytes.data() + 8 * i, 8);
    } else if (tensor.dtype == DType::i32) {
      std::int32_t value = 0;
      std::memcpy(&value, tensor.bytes.data() + 4 * i, 4);
      values.push_back(value);
    } else {
      fail("{}: {} is {}; expected I32 or I64", path, tensor.name, describe(tensor));
    }
  }
  return values;
}

const StoredTensor* find(const std::vector<StoredTensor>& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

const StoredTensor& tensor_of(const std::string& path, const std::vector<StoredTensor>& tensors, const char* name) {
  const StoredTensor* tensor = find(tensors, name);
  if (tensor == nullptr) fail("{}: no tensor {}; a file of patches has pixel_values and grid", path, name);
  return *tensor;
}

}  // namespace

std::vector<Media> read_pixel_file(const std::string& path) {
  const MappedFile file(path);
  return parse_pixel_file(file.bytes(), path);
}

std::vector<Media> parse_pixel_file(std::span<const std::byte> bytes, const std::string& path) {
  const std::vector<StoredTensor> tensors = parse_safetensors(bytes, path);
  const StoredTensor& pixels = tensor_of(path, tensors, "pixel_values");
  const StoredTensor& grid = tensor_of(path, tensors, "grid");
  if ((pixels.dtype != DType::f32 && pixels.dtype != DType::bf16) || pixels.shape.size() != 2) {
    fail("{}: pixel_values is {}; expected F32 or BF16 [patches, values of a patch]", path, describe(pixels));
  }
  if (grid.shape.size() != 2 || grid.shape[1] != 3) fail("{}: grid is {}; expected [n, 3]", path, describe(grid));
  const std::vector<std::int64_t> sides = integers(path, grid);
  std::vector<std::int64_t> is_video;
  if (const StoredTensor* tensor = find(tensors, "is_video")) {
    is_video = integers(path, *tensor);
    if (std::ssize(is_video) != grid.shape[0])
      fail("{}: is_video is {}; expected one number for each of the {} rows of grid", path, describe(*tensor),
           grid.shape[0]);
  }
  const std::vector<float> values = widen(pixels);
  std::vector<Media> media;
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < grid.shape[0]; ++i) {
    const std::int64_t* side = sides.data() + 3 * i;
    for (int axis = 0; axis < 3; ++axis) {
      if (side[axis] < 1 || side[axis] > most_patches) fail("{}: grid: row {} holds {}", path, i, side[axis]);
    }
    // Divided, since the product of three may overflow.
    const std::int64_t left = pixels.shape[0] - row;
    if (side[0] > left || side[1] > left / side[0] || side[2] > left / (side[0] * side[1])) {
      fail("{}: grid asks for more patches than the {} rows of pixel_values (row {}: {} x {} x {})", path,
           pixels.shape[0], i, side[0], side[1], side[2]);
    }
    const std::int64_t patches = side[0] * side[1] * side[2];
    const auto begin = values.begin() + row * pixels.shape[1];
    const bool video = is_video.empty() ? side[0] > 1 : is_video[static_cast<std::size_t>(i)] != 0;
    media.push_back({.kind = video ? Media::Kind::video : Media::Kind::image,
                     .t = side[0],
                     .h = side[1],
                     .w = side[2],
                     .pixels = std::make_shared<const std::vector<float>>(begin, begin + patches * pixels.shape[1]),
                     .features = nullptr,
                     .key = ""});
    row += patches;
  }
  if (row != pixels.shape[0]) {
    fail("{}: pixel_values has {} rows where grid asks for {}", path, pixels.shape[0], row);
  }
  if (media.empty()) fail("{}: grid has no row", path);
  return media;
}

}  // namespace m3::cli
