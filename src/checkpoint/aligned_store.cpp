#include "src/checkpoint/aligned_store.h"

#include <cstdint>
#include <cstring>

#include "src/base/error.h"

namespace m3 {

const std::byte* AlignedStore::data(const StoredTensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.bytes.data());
  if (address % dtype_size(tensor.dtype) == 0) return tensor.bytes.data();
  return copies_.emplace_back(tensor.bytes.begin(), tensor.bytes.end()).data();
}

std::vector<float> widen(const StoredTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  const std::byte* data = tensor.bytes.data();
  const auto half = [&](std::size_t i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data + 2 * i, 2);
    return bits;
  };
  switch (tensor.dtype) {
    case DType::f32:
      if (!values.empty()) std::memcpy(values.data(), data, tensor.bytes.size());
      return values;
    case DType::f16:
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = f16_to_float(half(i));
      return values;
    case DType::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(bf16{half(i)});
      return values;
    default: fail_internal("widen: {} is {}", tensor.name, dtype_name(tensor.dtype));
  }
}

}  // namespace m3
