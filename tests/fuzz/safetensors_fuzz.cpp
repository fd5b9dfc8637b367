// Any bytes as a safetensors file: read, or refused with an m3::Error; what is read can be read to the last byte.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/error.h"
#include "src/checkpoint/aligned_store.h"
#include "src/checkpoint/names.h"
#include "src/checkpoint/problems.h"
#include "src/checkpoint/safetensors.h"
#include "src/checkpoint/schemes.h"

namespace {

// Layers 0 dense, 1 with experts, so that both meanings of `mlp` are met.
const std::vector<m3::LayerKind> layers = {{}, {.sparse_attention = true, .moe = true}};

void use(const m3::StoredTensor& tensor, m3::AlignedStore& store) {
  unsigned sum = 0;
  for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
  volatile unsigned sink = sum;
  static_cast<void>(sink);
  m3::canonical_name(tensor.name, layers);
  m3::describe(tensor);
  m3::printable(tensor.name);
  m3::ProblemList problems;
  m3::resolve_scalar(tensor, 0, problems);
  if (tensor.shape.empty()) return;
  // As the weight of a linear of its own size, with itself as the scale: never valid, always explained.
  const std::int64_t columns = tensor.shape.back();
  const std::span<const std::int64_t> lead(tensor.shape.data(), tensor.shape.size() - 1);
  m3::LinearTensors linear;
  linear.weight = &tensor;
  linear.weight_scale = &tensor;
  if (columns > 0 && tensor.elements() > 0) m3::resolve_linear(tensor.name, linear, lead, columns, store, problems);
  problems.text();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    m3::AlignedStore store;
    const auto bytes = std::as_bytes(std::span(data, size));
    for (const m3::StoredTensor& tensor : m3::parse_safetensors(bytes, "input")) use(tensor, store);
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
  return 0;
}
