#include "src/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "m3/error.h"

namespace m3 {
namespace {

TEST(ThreadPool, RunsEveryThreadOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(threads));
      pool.run([&](int thread) { ++calls[static_cast<std::size_t>(thread)]; });
      for (const auto& count : calls) ASSERT_EQ(count.load(), 1);
    }
  }
}

// Each index once, in contiguous ranges that begin on the grain and are the same every time.
TEST(ThreadPool, SplitCoversTheRange) {
  for (const int threads : {1, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::int64_t count : {0, 1, 7, 64, 1001}) {
      for (const std::int64_t grain : {1, 16, 100}) {
        std::vector<std::atomic<int>> owner(static_cast<std::size_t>(count));
        for (auto& value : owner) value = -1;
        for (int round = 0; round < 2; ++round) {
          pool.split(count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
            EXPECT_EQ(begin % grain, 0);
            for (std::int64_t i = begin; i < end; ++i) {
              auto& at = owner[static_cast<std::size_t>(i)];
              EXPECT_EQ(at.load(), round == 0 ? -1 : thread);
              at = thread;
            }
          });
        }
        for (const auto& value : owner) ASSERT_GE(value.load(), 0);
      }
    }
  }
}

TEST(ThreadPool, EachTakesEveryIndexOnce) {
  ThreadPool pool(4);
  for (const std::int64_t count : {0, 1, 5, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
    pool.each(count, [&](std::int64_t index, int thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, 4);
      ++calls[static_cast<std::size_t>(index)];
    });
    for (const auto& value : calls) ASSERT_EQ(value.load(), 1);
  }
}

TEST(ThreadPool, ThrowsTheFirstExceptionAndGoesOn) {
  ThreadPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    EXPECT_THROW(pool.run([&](int thread) {
      if (thread == thrower) throw std::runtime_error("here");
    }),
                 std::runtime_error);
    std::atomic<int> calls = 0;
    pool.run([&](int) { ++calls; });
    EXPECT_EQ(calls.load(), 3);
  }
  ThreadPool alone(1);
  EXPECT_THROW(alone.run([](int) { throw std::runtime_error("here"); }), std::runtime_error);
}

// Workers that have gone to sleep wake up, and what one run wrote is seen by the next.
TEST(ThreadPool, WakesAfterAPause) {
  ThreadPool pool(3);
  std::vector<int> values(3, 0);
  for (int round = 1; round <= 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.run([&](int thread) { ++values[static_cast<std::size_t>(thread)]; });
    for (const int value : values) ASSERT_EQ(value, round);
  }
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 2 == 0) pool.run([](int) {});
  }
}

TEST(ThreadPool, RefusesAbsurdCounts) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(5000), Error);
  EXPECT_GE(physical_cores(), 1);
  EXPECT_EQ(ThreadPool(0).size(), physical_cores());
}

}  // namespace
}  // namespace m3
