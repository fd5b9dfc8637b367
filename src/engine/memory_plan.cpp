#include "src/engine/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "src/base/error.h"
#include "src/base/memory_size.h"

namespace m3::engine {

std::int64_t usable_bytes(const MemoryRequest& request) {
  const auto share = [&](std::int64_t bytes) {
    return static_cast<std::int64_t>(static_cast<double>(bytes) * request.utilization);
  };
  if (request.total_bytes == 0) return share(request.available_bytes);
  return std::min(request.available_bytes, share(request.total_bytes));
}

MemoryPlan plan_memory(const MemoryNeeds& needs, const MemoryRequest& request) {
  const std::int64_t wanted_len = request.requested_len;
  if (wanted_len < 0) fail_usage("--max-model-len {}: give a number of tokens, or 0 for what fits", wanted_len);
  if (wanted_len > request.position_limit) {
    fail_usage("--max-model-len {}: the checkpoint's positions end at {}; ask for at most that", wanted_len,
               request.position_limit);
  }
  if (!(request.utilization > 0 && request.utilization <= 1))
    fail_usage("--memory-utilization {}: give a share in (0, 1]", request.utilization);
  const std::int64_t usable = usable_bytes(request);
  if (needs.weight_bytes > usable) {
    fail_resource(
        "the weights take {} and {} may be used; a checkpoint in a smaller format, a larger --memory-utilization or "
        "--device cpu would do",
        human_bytes(needs.weight_bytes), human_bytes(usable));
  }
  const std::int64_t free_bytes = std::max<std::int64_t>(0, usable - needs.workspace_bytes - needs.weight_bytes);
  const std::string beside =
      human_bytes(needs.workspace_bytes) + " of working memory" +
      (needs.weight_bytes > 0 ? " and " + human_bytes(needs.weight_bytes) + " of weights" : std::string());
  if (request.cache_limit > free_bytes) {
    fail_resource("a cache of {} does not fit: {} are left beside {}", human_bytes(request.cache_limit),
                  human_bytes(free_bytes), beside);
  }
  const std::int64_t budget = request.cache_limit > 0 ? request.cache_limit : free_bytes;
  const std::int64_t most_pages =
      std::min<std::int64_t>(budget / needs.page_bytes, std::numeric_limits<std::int32_t>::max());
  const std::int64_t fitting_len = std::min(most_pages / request.full_contexts * 128, request.position_limit);
  if (fitting_len == 0) {
    fail_resource(
        "no memory for even one 128-token page of {}: {} are left beside {}; a smaller "
        "--max-model-len, --max-num-batched-tokens, --max-picture-patches or --media-memory-bytes needs less",
        human_bytes(needs.page_bytes * request.full_contexts), human_bytes(budget), beside);
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

}  // namespace m3::engine
