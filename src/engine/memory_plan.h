// How much context fits: planned from sizes before anything long starts.
#pragma once

#include <cstdint>

namespace m3::engine {

struct MemoryNeeds {
  std::int64_t page_bytes = 0;  // of one 128-token page, all layers
  std::int64_t workspace_bytes = 0;
  std::int64_t weight_bytes = 0;  // that a device takes; mapped files do not count
};

struct MemoryRequest {
  std::int64_t requested_len = 0;   // longest context; 0: the longest that positions and memory allow
  std::int64_t position_limit = 0;  // of the checkpoint
  std::int64_t cache_limit = 0;     // bytes that become pages; 0: what utilization leaves
  std::int64_t available_bytes = 0;
  double utilization = 0.9;          // of the available bytes: for working memory and cache
  std::int64_t total_bytes = 0;      // of a device: utilization is a share of this, weights included; 0: the host
  std::int64_t full_contexts = 1;    // that must fit
  std::int64_t wanted_contexts = 1;  // that get pages as far as memory goes, where no cache_limit is given
};

struct MemoryPlan {
  std::int64_t max_model_len = 0;
  std::int32_t pages = 0;
};

// Bytes that the request's utilization lets this process take.
std::int64_t usable_bytes(const MemoryRequest& request);

// Errors: a utilization outside (0, 1], a context past the position limit, or one that does not fit; the last two name
// the largest context that would do.
MemoryPlan plan_memory(const MemoryNeeds& needs, const MemoryRequest& request);

}  // namespace m3::engine
