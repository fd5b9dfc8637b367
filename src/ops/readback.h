// Results of a backend where the host can read them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/ops/ops.h"

namespace m3::ops {

// `count` elements: where they are, if that is the host's memory; else downloaded into `buffer`, which waits.
template <typename T>
const T* read_back(Backend& backend, const T* values, std::int64_t count, std::vector<std::byte>& buffer) {
  if (backend.has_host_memory()) return values;
  buffer.resize(static_cast<std::size_t>(count) * sizeof(T));
  backend.download(buffer, reinterpret_cast<const std::byte*>(values));
  return reinterpret_cast<const T*>(buffer.data());
}

// Likewise a tensor whose rows have no gaps; the result is a view of it or of `buffer`.
inline Tensor read_back(Backend& backend, const Tensor& tensor, std::vector<std::byte>& buffer) {
  if (backend.has_host_memory()) return tensor;
  buffer.resize(static_cast<std::size_t>(tensor.rows * tensor.row_stride) * dtype_size(tensor.dtype));
  backend.download(buffer, tensor.data);
  Tensor result = tensor;
  result.data = buffer.data();
  return result;
}

}  // namespace m3::ops
