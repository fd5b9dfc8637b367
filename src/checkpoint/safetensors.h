// Reading safetensors: headers checked to the last byte, tensors left where they are mapped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/base/number_formats.h"

namespace m3 {

struct StoredTensor {
  std::string name;  // as stored
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, inside the mapping; aligned only if the file aligns it

  std::int64_t elements() const;
};

// "BF16 [512, 6144]", for messages.
std::string describe(const StoredTensor& tensor);
std::string describe_shape(std::span<const std::int64_t> shape);

// The tensors of one file's bytes, in the order of their data. Errors name `origin` and the tensor: a header that is
// no JSON or leaves the file, an unknown dtype, sizes that overflow or disagree with the offsets, tensors that
// overlap, bytes that belong to no tensor, a file that ends early. F8_E8M0 is read as U8.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin);

// All tensors of a checkpoint: DIRECTORY/model.safetensors, or the shards that model.safetensors.index.json names.
class TensorFiles {
 public:
  TensorFiles() = default;
  // Errors: no safetensors there (what is there instead is said), and for an index: absent shards, shard names that
  // leave the directory, a tensor in two shards, in none, or in one that the index does not name for it. The
  // index's total_size is not used; it is wrong in published checkpoints.
  static TensorFiles open(const std::filesystem::path& directory);
  // A single file.
  static TensorFiles open_file(const std::filesystem::path& file);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  // nullptr where absent
  std::int64_t file_bytes() const;
  std::size_t file_count() const { return files_.size(); }

 private:
  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace m3
