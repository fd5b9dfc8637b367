// Writing a safetensors file: whole or not at all, tensor by tensor, without a second copy of the data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/base/number_formats.h"

namespace m3 {

// declare() every tensor, then write() each in the same order, in one piece or several, then commit(). The file gets
// its name in commit(); before that an earlier file of the name stays as it was. Tensors begin at multiples of their
// element size as long as larger elements are declared before smaller ones or sizes are multiples of 8.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(std::filesystem::path path);

  void metadata(const std::string& key, const std::string& value);
  // Errors: a name given twice, a size below 0, sizes that overflow, anything declared after the first write.
  void declare(const std::string& name, DType dtype, std::span<const std::int64_t> shape);
  // The next bytes of tensor `name`. Errors: the disk; out of order or too many bytes is an internal error.
  void write(const std::string& name, std::span<const std::byte> bytes);
  void commit();

 private:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes = 0;
  };
  void write_header();
  void skip_complete();

  AtomicFile file_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::size_t> by_name_;
  std::vector<Entry> entries_;
  bool header_written_ = false;
  std::size_t current_ = 0;    // entry being written
  std::uint64_t written_ = 0;  // bytes of it
};

}  // namespace m3
