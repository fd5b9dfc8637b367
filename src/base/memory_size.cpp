#include "src/base/memory_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>

namespace m3 {

namespace {

// The first integer after `key` in a file of "key value" lines, or of the whole file where key is empty; -1 if absent.
std::int64_t read_number(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    std::istringstream words(line.substr(key.size()));
    std::int64_t value = -1;
    if (words >> value) return value;
  }
  return -1;
}

}  // namespace

std::int64_t total_memory_bytes() {
  std::int64_t total = std::numeric_limits<std::int64_t>::max();
  const std::int64_t kibibytes = read_number("/proc/meminfo", "MemTotal:");
  if (kibibytes >= 0) total = kibibytes * 1024;
  const std::int64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
  return limit >= 0 ? std::min(total, limit) : total;
}

std::int64_t available_memory_bytes() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  const std::int64_t kibibytes = read_number("/proc/meminfo", "MemAvailable:");
  if (kibibytes >= 0) available = kibibytes * 1024;
  const std::int64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
  const std::int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
  if (limit >= 0 && used >= 0) available = std::min(available, std::max<std::int64_t>(0, limit - used));
  return available;
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace m3
