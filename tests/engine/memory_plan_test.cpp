#include "src/engine/memory_plan.h"

#include <gtest/gtest.h>

#include "m3/error.h"
#include "src/base/memory_size.h"

namespace m3::engine {
namespace {

constexpr MemoryNeeds needs{.page_bytes = 1000, .workspace_bytes = 10'000, .weight_bytes = 0};

MemoryPlan plan(std::int64_t requested, std::int64_t positions, std::int64_t cache, std::int64_t available,
                std::int64_t wanted = 1, double utilization = 0.8) {
  return plan_memory(needs, {.requested_len = requested,
                             .position_limit = positions,
                             .cache_limit = cache,
                             .available_bytes = available,
                             .utilization = utilization,
                             .wanted_contexts = wanted});
}

std::string error_of(std::int64_t requested, std::int64_t positions, std::int64_t cache, std::int64_t available,
                     double utilization = 0.8) {
  try {
    plan(requested, positions, cache, available, 1, utilization);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryPlan, AnExplicitContextGetsItsPages) {
  const MemoryPlan made = plan(1000, 4096, 0, 1'000'000);
  EXPECT_EQ(made.max_model_len, 1000);
  EXPECT_EQ(made.pages, 8);
}

TEST(MemoryPlan, WithoutARequestPositionsOrMemoryDecide) {
  EXPECT_EQ(plan(0, 4096, 0, 1'000'000).max_model_len, 4096);
  EXPECT_EQ(plan(0, 1 << 20, 0, 100'000).max_model_len, 70 * 128);  // 80 % less the working memory
  EXPECT_EQ(plan(0, 1 << 20, 0, 100'000, 1, 0.5).max_model_len, 40 * 128);
  EXPECT_EQ(plan(0, 1 << 20, 5'500, 1'000'000).max_model_len, 5 * 128);
}

TEST(MemoryPlan, MoreContextsGetPagesAsFarAsMemoryGoes) {
  EXPECT_EQ(plan(1000, 4096, 0, 1'000'000, 5).pages, 40);
  EXPECT_EQ(plan(1000, 4096, 0, 100'000, 1 << 30).pages, 70);
  EXPECT_EQ(plan(1000, 4096, 20'000, 1'000'000, 1).pages, 20);  // what was asked for is used
}

TEST(MemoryPlan, ARequestThatCannotFitNamesTheLargestThatWould) {
  EXPECT_NE(error_of(20'000, 1 << 20, 0, 100'000).find("the largest context that fits is 8960"), std::string::npos);
  EXPECT_NE(error_of(5000, 4096, 0, 1'000'000).find("end at 4096"), std::string::npos);
  EXPECT_NE(error_of(128, 4096, 0, 10'500).find("no memory for even one"), std::string::npos);
  EXPECT_NE(error_of(-1, 4096, 0, 10'500).find("--max-model-len -1"), std::string::npos);
  EXPECT_NE(error_of(128, 4096, 80'000, 100'000).find("a cache of 78.1 KiB does not fit"), std::string::npos);
  for (const double share : {0.0, -1.0, 1.5}) {
    EXPECT_NE(error_of(128, 4096, 0, 100'000, share).find("--memory-utilization"), std::string::npos);
  }
}

TEST(MemoryPlan, ADevicesShareIsOfAllItsMemoryAndHoldsTheWeights) {
  const MemoryNeeds device_needs{.page_bytes = 1000, .workspace_bytes = 10'000, .weight_bytes = 50'000};
  const auto on_device = [&](std::int64_t free, std::int64_t requested) {
    return plan_memory(device_needs, {.requested_len = requested,
                                      .position_limit = 1 << 20,
                                      .available_bytes = free,
                                      .utilization = 0.8,
                                      .total_bytes = 100'000});
  };
  EXPECT_EQ(on_device(100'000, 0).max_model_len, 20 * 128);
  EXPECT_EQ(on_device(70'000, 0).max_model_len, 10 * 128);  // others hold the rest
  const auto error = [&](std::int64_t free, std::int64_t requested) -> std::string {
    try {
      on_device(free, requested);
    } catch (const Error& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_NE(error(45'000, 0).find("the weights take 48.8 KiB and 43.9 KiB may be used"), std::string::npos);
  EXPECT_NE(error(100'000, 100'000).find("the largest context that fits is 2560"), std::string::npos);
  EXPECT_NE(error(60'500, 0).find("of working memory and 48.8 KiB of weights"), std::string::npos);
}

TEST(MemoryPlan, TheMachineTellsItsMemory) { EXPECT_GT(available_memory_bytes(), 1 << 20); }

TEST(MemoryPlan, BytesForPeople) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(std::int64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace m3::engine
