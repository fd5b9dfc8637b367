// How much context fits: planned from sizes before anything long starts.
#pragma once

#include <cstdint>
#include <string>

namespace m3::engine {

struct MemoryNeeds {
  std::int64_t page_bytes = 0;  // of one 128-token page, all layers
  std::int64_t workspace_bytes = 0;
  std::int64_t weight_bytes = 0;  // copies in anonymous memory (online quantisation); mapped files do not count
};

struct MemoryPlan {
  std::int64_t max_model_len = 0;
  std::int32_t pages = 0;
};

// `requested_len` 0: the longest that positions (`position_limit`) and memory allow. `cache_limit` 0: 80 % of what
// is free after the workspace. Errors: a request past the position limit, or one that does not fit; both name the
// largest context that would do.
MemoryPlan plan_memory(const MemoryNeeds& needs, std::int64_t requested_len, std::int64_t position_limit,
                       std::int64_t cache_limit, std::int64_t available_bytes);

// Memory this process may still take: MemAvailable, or less under a cgroup limit.
std::int64_t available_memory_bytes();

// "1.5 GiB"
std::string human_bytes(std::int64_t bytes);

}  // namespace m3::engine
