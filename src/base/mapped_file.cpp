#include "src/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace m3 {

namespace {

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_resource("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_resource("cannot read {}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", path.string());
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    fail_resource("cannot map {} ({} bytes): {}", path.string(), size_, std::strerror(errno));
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

std::string read_text_file(const std::filesystem::path& path, std::size_t limit) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > limit) {
    fail("{} has {} bytes, more than the {} that such a file may have", path.string(), bytes.size(), limit);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_.string() + ".XXXXXX";
  descriptor_ = ::mkstemp(temporary_.data());
  if (descriptor_ < 0) {
    temporary_.clear();
    fail_resource("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_resource("cannot write {}: {}", path_.string(), std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  // mkstemp makes files private; give what a plain creation would have given.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool failed = ::fchmod(descriptor_, 0666 & ~mask) != 0 || ::fsync(descriptor_) != 0 ||
                      ::close(std::exchange(descriptor_, -1)) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0;
  if (failed) fail_resource("cannot write {}: {}", path_.string(), std::strerror(errno));
  temporary_.clear();
}

}  // namespace m3
