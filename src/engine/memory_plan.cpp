#include "src/engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "src/base/error.h"

namespace m3::engine {

MemoryPlan plan_memory(const MemoryNeeds& needs, const MemoryRequest& request) {
  const std::int64_t wanted_len = request.requested_len;
  if (wanted_len < 0) fail_usage("--max-model-len {}: give a number of tokens, or 0 for what fits", wanted_len);
  if (wanted_len > request.position_limit) {
    fail_usage("--max-model-len {}: the checkpoint's positions end at {}; ask for at most that", wanted_len,
               request.position_limit);
  }
  if (!(request.utilization > 0 && request.utilization <= 1))
    fail_usage("--memory-utilization {}: give a share in (0, 1]", request.utilization);
  const auto usable = static_cast<std::int64_t>(static_cast<double>(request.available_bytes) * request.utilization);
  const std::int64_t free_bytes = std::max<std::int64_t>(0, usable - needs.workspace_bytes - needs.weight_bytes);
  if (request.cache_limit > free_bytes) {
    fail_resource("a cache of {} does not fit: {} are left beside {} of working memory",
                  human_bytes(request.cache_limit), human_bytes(free_bytes), human_bytes(needs.workspace_bytes));
  }
  const std::int64_t budget = request.cache_limit > 0 ? request.cache_limit : free_bytes;
  const std::int64_t most_pages =
      std::min<std::int64_t>(budget / needs.page_bytes, std::numeric_limits<std::int32_t>::max());
  const std::int64_t fitting_len = std::min(most_pages / request.full_contexts * 128, request.position_limit);
  if (fitting_len == 0) {
    fail_resource(
        "no memory for even one 128-token page of {}: {} are left beside {} of working memory; a smaller "
        "--max-model-len, --max-num-batched-tokens or --max-picture-patches needs less",
        human_bytes(needs.page_bytes * request.full_contexts), human_bytes(budget), human_bytes(needs.workspace_bytes));
  }
  if (wanted_len > fitting_len) {
    fail_resource("a context of {} tokens needs {} of cache but {} are left; the largest context that fits is {}",
                  wanted_len, human_bytes((wanted_len + 127) / 128 * needs.page_bytes * request.full_contexts),
                  human_bytes(budget), fitting_len);
  }
  MemoryPlan plan;
  plan.max_model_len = wanted_len > 0 ? wanted_len : fitting_len;
  const std::int64_t context_pages = (plan.max_model_len + 127) / 128;
  const std::int64_t wanted_pages = request.cache_limit > 0 || request.wanted_contexts > most_pages / context_pages
                                        ? most_pages
                                        : context_pages * std::max(request.full_contexts, request.wanted_contexts);
  plan.pages = static_cast<std::int32_t>(wanted_pages);
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
