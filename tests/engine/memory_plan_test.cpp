#include "src/engine/memory_plan.h"

#include <gtest/gtest.h>

#include "m3/error.h"

namespace m3::engine {
namespace {

constexpr MemoryNeeds needs{.page_bytes = 1000, .workspace_bytes = 10'000, .weight_bytes = 0};

std::string error_of(std::int64_t requested, std::int64_t positions, std::int64_t cache, std::int64_t available) {
  try {
    plan_memory(needs, requested, positions, cache, available);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryPlan, AnExplicitContextGetsItsPages) {
  const MemoryPlan plan = plan_memory(needs, 1000, 4096, 0, 1'000'000);
  EXPECT_EQ(plan.max_model_len, 1000);
  EXPECT_EQ(plan.pages, 8);
}

TEST(MemoryPlan, WithoutARequestPositionsOrMemoryDecide) {
  EXPECT_EQ(plan_memory(needs, 0, 4096, 0, 1'000'000).max_model_len, 4096);
  EXPECT_EQ(plan_memory(needs, 0, 1 << 20, 0, 110'000).max_model_len, 80 * 128);  // 80 % of what is left
  EXPECT_EQ(plan_memory(needs, 0, 1 << 20, 5'500, 1'000'000).max_model_len, 5 * 128);
}

TEST(MemoryPlan, ARequestThatCannotFitNamesTheLargestThatWould) {
  EXPECT_NE(error_of(20'000, 1 << 20, 0, 110'000).find("the largest context that fits is 12800"), std::string::npos);
  EXPECT_NE(error_of(5000, 4096, 0, 1'000'000).find("end at 4096"), std::string::npos);
  EXPECT_NE(error_of(128, 4096, 0, 10'500).find("no memory for even one"), std::string::npos);
  EXPECT_NE(error_of(-1, 4096, 0, 10'500).find("--max-model-len -1"), std::string::npos);
}

TEST(MemoryPlan, TheMachineTellsItsMemory) { EXPECT_GT(available_memory_bytes(), 1 << 20); }

TEST(MemoryPlan, BytesForPeople) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(std::int64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace m3::engine
