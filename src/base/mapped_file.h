// Files mapped for reading, and files written whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace m3 {

// A read-only mapping of a whole file; moved, not copied. Weights are used in place from here.
class MappedFile {
 public:
  MappedFile() = default;
  // Errors: the file cannot be opened, is a directory, or cannot be mapped. An empty file maps to no bytes.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The file's open descriptor, or -1.
  int descriptor() const { return descriptor_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  std::filesystem::path path_;
};

// Copies bytes that a live MappedFile holds by reading its file: half as long again as fast as through the mapping, whose
// pages each have to be entered into a table. False: no MappedFile holds them all. Errors: (resource) the file cannot be
// read there, or has become shorter.
bool read_mapped(std::span<const std::byte> mapped, std::byte* to);

// The whole file as text. `limit` bounds its size in bytes; a larger file is an error that names both.
std::string read_text_file(const std::filesystem::path& path, std::size_t limit);
// The same for what a person names, which may also be a pipe: a shell's <(command).
std::string read_text_input(const std::filesystem::path& path, std::size_t limit);

// Collects output under a temporary name beside `path`; commit() flushes and renames it into place, so that a
// reader never sees half a file and an earlier file survives a failure. Without commit() nothing is left. A link keeps
// its place and its target gets the content. Errors: something there that is no regular file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Errors: disk full or unwritable, naming the final path.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  std::filesystem::path path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace m3
