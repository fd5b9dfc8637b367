#include "src/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
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
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// The live mappings by their address.
struct Mapping {
  std::size_t size;
  int descriptor;
  std::filesystem::path path;
};
std::mutex mappings_mutex;
std::map<const void*, Mapping>& mappings() {
  static std::map<const void*, Mapping> all;
  return all;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  if (path.empty()) fail_usage("the name of a file to read is empty");
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not block here
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
  const std::lock_guard lock(mappings_mutex);
  mappings()[data_] = {size_, file.get(), path_};
  descriptor_ = file.release();
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  {
    const std::lock_guard lock(mappings_mutex);
    mappings().erase(data_);
  }
  ::munmap(data_, size_);
  ::close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

bool read_mapped(std::span<const std::byte> mapped, std::byte* to) {
  int descriptor = -1;
  off_t offset = 0;
  std::filesystem::path path;
  {
    const std::lock_guard lock(mappings_mutex);
    auto after = mappings().upper_bound(mapped.data());
    if (after == mappings().begin()) return false;
    const auto& [start, mapping] = *--after;
    offset = mapped.data() - static_cast<const std::byte*>(start);
    if (static_cast<std::size_t>(offset) + mapped.size() > mapping.size) return false;
    descriptor = mapping.descriptor;
    path = mapping.path;
  }
  for (std::size_t done = 0; done < mapped.size();) {
    const ssize_t count = ::pread(descriptor, to + done, mapped.size() - done, offset + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    // Whoever read the mapping instead would be ended by a signal.
    if (count < 0) fail_resource("cannot read {}: {}", path.string(), std::strerror(errno));
    if (count == 0) fail_resource("{} became shorter while it was read", path.string());
    done += static_cast<std::size_t>(count);
  }
  return true;
}

namespace {

// What a shell's <(command) gives.
std::string read_pipe(const std::filesystem::path& path, std::size_t limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_resource("cannot open {}: {}", path.string(), std::strerror(errno));
  std::string text;
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_resource("cannot read {}: {}", path.string(), std::strerror(errno));
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > limit) fail("{} gives more than the {} bytes that such a file may have", path.string(), limit);
  }
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, std::size_t limit) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > limit) {
    fail("{} has {} bytes, more than the {} that such a file may have", path.string(), bytes.size(), limit);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string read_text_input(const std::filesystem::path& path, std::size_t limit) {
  std::error_code ignored;
  return std::filesystem::is_fifo(path, ignored) ? read_pipe(path, limit) : read_text_file(path, limit);
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  // A link keeps its place, its target gets the content; what is no regular file must not be replaced by one.
  std::error_code ignored;
  const auto status = std::filesystem::status(path_, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fail_resource("cannot write {}: it is there and is not a regular file", path_.string());
  }
  if (std::filesystem::is_symlink(path_, ignored)) path_ = std::filesystem::weakly_canonical(path_, ignored);
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
