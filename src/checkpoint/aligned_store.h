// Stored tensors at addresses that their element type allows.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "src/checkpoint/safetensors.h"

namespace m3 {

// Files normally align every tensor to its element size, and then the mapping itself is used. The format does not
// promise it, so a tensor at an odd address is copied here, that one alone.
class AlignedStore {
 public:
  const std::byte* data(const StoredTensor& tensor);

 private:
  std::deque<std::vector<std::byte>> copies_;
};

// The elements of an F32, F16 or BF16 tensor as fp32. Errors: any other dtype.
std::vector<float> widen(const StoredTensor& tensor);

}  // namespace m3
