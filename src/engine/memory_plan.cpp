#include "src/engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "src/base/error.h"

namespace m3::engine {

MemoryPlan plan_memory(const MemoryNeeds& needs, std::int64_t requested_len, std::int64_t position_limit,
                       std::int64_t cache_limit, std::int64_t available_bytes) {
  if (requested_len < 0) fail_usage("--max-model-len {}: give a number of tokens, or 0 for what fits", requested_len);
  if (requested_len > position_limit) {
    fail_usage("--max-model-len {}: the checkpoint's positions end at {}; ask for at most that", requested_len,
               position_limit);
  }
  const std::int64_t free_bytes =
      std::max<std::int64_t>(0, available_bytes - needs.workspace_bytes - needs.weight_bytes);
  const std::int64_t budget = cache_limit > 0     ? std::min(cache_limit, free_bytes)
                              : requested_len > 0 ? free_bytes
                                                  : free_bytes / 5 * 4;
  const std::int64_t fitting_pages =
      std::min<std::int64_t>(budget / needs.page_bytes, std::numeric_limits<std::int32_t>::max());
  const std::int64_t fitting_len = std::min(fitting_pages * 128, position_limit);
  if (fitting_len == 0) {
    fail_resource(
        "no memory for even one 128-token page of {}: {} are left beside {} of working memory; a smaller "
        "--max-model-len or --max-num-batched-tokens needs less",
        human_bytes(needs.page_bytes), human_bytes(budget), human_bytes(needs.workspace_bytes));
  }
  if (requested_len > fitting_len) {
    fail_resource("a context of {} tokens needs {} of cache but {} are left; the largest context that fits is {}",
                  requested_len, human_bytes((requested_len + 127) / 128 * needs.page_bytes), human_bytes(budget),
                  fitting_len);
  }
  MemoryPlan plan;
  plan.max_model_len = requested_len > 0 ? requested_len : fitting_len;
  plan.pages = static_cast<std::int32_t>((plan.max_model_len + 127) / 128);
  return plan;
}

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

}  // namespace m3::engine
