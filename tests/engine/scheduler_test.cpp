// The scheduler's decisions, without a model.
#include "src/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

namespace m3::engine {
namespace {

kv::PageLayout layout() {
  return kv::make_page_layout({{.kv_heads = 1, .index_k = true}}, DType::bf16, DType::bf16, "m");
}

struct Job : Schedulable {
  Job(kv::PagePool& pool, Rank where, std::int64_t prompt_tokens, std::int64_t reply_tokens)
      : Schedulable(pool), prompt(prompt_tokens), reply(reply_tokens) {
    rank = where;
    // Each job's ids are its own.
    tokens.assign(static_cast<std::size_t>(prompt), static_cast<TokenId>(where.request));
  }
  std::int64_t ready() const override { return std::clamp<std::int64_t>(known - pages.length(), 0, pending()); }
  std::int64_t prompt, reply;
  std::int64_t known = std::int64_t{1} << 40;  // tokens that may be computed
  std::int64_t first_token_step = -1, last_step = -1;
  bool done() const { return static_cast<std::int64_t>(tokens.size()) == prompt + reply; }
};

class Simulation {
 public:
  Simulation(const SchedulerLimits& of, std::int32_t pages, bool cached = false)
      : limits(of), pool(layout(), pages), tree(pool, "m"), scheduler(of, pool, cached ? &tree : nullptr) {}

  Job& add(std::int64_t prompt, std::int64_t reply, int priority = 0) {
    jobs.push_back(std::make_unique<Job>(pool, Rank{priority, jobs.size() + 1, 0}, prompt, reply));
    scheduler.enqueue(*jobs.back());
    return *jobs.back();
  }

  // Plans, checks what holds for every plan, and lets each draw append a token.
  Plan step() {
    std::vector<Schedulable*> decoding_before;
    for (Schedulable* item : scheduler.running()) {
      if (item->pending() == 1 && item->ready() == 1) decoding_before.push_back(item);
    }
    Plan plan = scheduler.plan();
    std::int64_t total = 0;
    bool decoding = true;
    for (const Chunk& chunk : plan.chunks) {
      total += chunk.count;
      EXPECT_GT(chunk.count, 0);
      EXPECT_EQ(chunk.item->state, Schedulable::State::running);
      EXPECT_EQ(chunk.draws > 0, chunk.item->pending() == 0);
      EXPECT_GE(static_cast<std::int64_t>(chunk.item->pages.pages().size()) * 128, chunk.item->pages.length());
      EXPECT_TRUE(decoding || chunk.item->pending() > 0 || chunk.count > 1 ||
                  chunk.item->pages.length() <= static_cast<Job*>(chunk.item)->prompt)
          << "a decode after a prompt";
      decoding = decoding && chunk.count == 1;
    }
    EXPECT_LE(total, limits.tokens);
    EXPECT_LE(static_cast<std::int64_t>(scheduler.running().size()), limits.sequences);
    EXPECT_TRUE(std::ranges::is_sorted(scheduler.running(), {}, [](const Schedulable* item) { return item->rank; }));
    for (const Schedulable* item : decoding_before) {
      if (item->state != Schedulable::State::running || item->pending() != 1) continue;
      ADD_FAILURE() << "request " << item->rank.request << " was not decoded";
    }
    ++steps;
    preemptions += plan.preempted;
    for (const Chunk& chunk : plan.chunks) {
      scheduler.computed(chunk);
      if (chunk.draws == 0) continue;
      auto& job = static_cast<Job&>(*chunk.item);
      job.tokens.push_back(static_cast<TokenId>(job.rank.request));
      if (job.first_token_step < 0) job.first_token_step = steps;
      if (!job.done()) continue;
      job.last_step = steps;
      scheduler.remove(job);
    }
    return plan;
  }

  void run_all(int most_steps) {
    while (steps < most_steps && std::ranges::any_of(jobs, [](const auto& job) { return !job->done(); })) step();
    for (const auto& job : jobs) EXPECT_TRUE(job->done()) << "request " << job->rank.request << " starved";
    EXPECT_EQ(pool.free_pages() + tree.idle(), pool.pages());
  }

  SchedulerLimits limits;
  kv::PagePool pool;
  kv::PrefixTree tree;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Job>> jobs;
  int steps = 0;
  std::int64_t preemptions = 0;
};

TEST(Scheduler, MixesDecodesAndPromptChunksWithinTheBudget) {
  Simulation simulation({.tokens = 64, .sequences = 8}, 64);
  simulation.add(10, 100);
  simulation.step();
  simulation.add(300, 2);
  const Plan plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].count, 1);
  EXPECT_EQ(plan.chunks[1].count, 63);
  simulation.run_all(200);
}

TEST(Scheduler, WhatIsNotReadyWaitsAndHoldsNobodyUp) {
  Simulation simulation({.tokens = 64, .sequences = 8}, 64);
  Job& waits = simulation.add(200, 2);
  Job& last = simulation.add(30, 2);  // for its last token
  Job& other = simulation.add(150, 20);
  waits.known = 40;
  last.known = 29;
  for (int i = 0; i < 8; ++i) simulation.step();
  EXPECT_EQ(waits.pages.length(), 40);
  EXPECT_EQ(last.pages.length(), 29);
  EXPECT_EQ(last.pending(), 1);
  EXPECT_EQ(other.first_token_step, 4);  // 219 tokens in steps of 64
  EXPECT_GE(std::ssize(other.tokens), 154);
  while (!other.done()) simulation.step();
  EXPECT_TRUE(simulation.scheduler.plan().chunks.empty());
  waits.known = last.known = 1000;
  simulation.run_all(60);
}

TEST(Scheduler, ShortPromptsDoNotWaitForALongOneNorStopIt) {
  Simulation simulation({.tokens = 64, .sequences = 16}, 512);
  Job& large = simulation.add(6400, 1);
  simulation.step();
  for (int i = 0; i < 8; ++i) {
    Job& small = simulation.add(30, 1);
    const int from = simulation.steps;
    while (!small.done()) simulation.step();
    EXPECT_LE(small.last_step - from, 2);
  }
  // A stream of short ones leaves the long one at least half of every step.
  while (!large.done() && simulation.steps < 1000) {
    simulation.add(64, 1);
    simulation.step();
  }
  EXPECT_LE(large.last_step, 2 * 6400 / 64 + 20);
  simulation.run_all(2000);
}

TEST(Scheduler, FirstComeFirstServedInsideAPriorityAndLowerNumbersFirst) {
  Simulation simulation({.tokens = 16, .sequences = 1}, 64);
  Job& running = simulation.add(5, 3, 4);
  simulation.step();
  Job& late = simulation.add(5, 3, 9);
  Job& equal = simulation.add(5, 3, 4);
  Job& early = simulation.add(5, 3, -1);
  simulation.step();
  EXPECT_EQ(running.state, Schedulable::State::waiting);  // a lower number takes its place
  EXPECT_EQ(early.state, Schedulable::State::running);
  simulation.run_all(100);
  EXPECT_LT(early.last_step, running.last_step);
  EXPECT_LT(running.last_step, equal.last_step);
  EXPECT_LT(equal.last_step, late.last_step);
}

TEST(Scheduler, TheLowestRankMakesRoom) {
  Simulation simulation({.tokens = 512, .sequences = 4}, 4);
  Job& first = simulation.add(250, 200);
  Job& second = simulation.add(250, 100);
  simulation.step();
  EXPECT_EQ(second.state, Schedulable::State::running);
  while (simulation.preemptions == 0 && !first.done()) simulation.step();
  EXPECT_EQ(first.state, Schedulable::State::running);
  EXPECT_EQ(second.state, Schedulable::State::waiting);
  EXPECT_TRUE(second.pages.pages().empty());
  simulation.run_all(1000);
  EXPECT_LT(first.last_step, second.last_step);
}

TEST(Scheduler, APromptIsNotBegunBeforeAllOfItFits) {
  Simulation simulation({.tokens = 64, .sequences = 8}, 8);
  for (int i = 0; i < 4; ++i) simulation.add(4 * 128, 1);
  simulation.step();
  EXPECT_EQ(simulation.scheduler.running().size(), 2u);
  simulation.run_all(200);
  EXPECT_EQ(simulation.preemptions, 0);
}

TEST(Scheduler, FollowersTakePlacesBeforeLaterRequests) {
  Simulation simulation({.tokens = 64, .sequences = 4}, 16);
  Job& leader = simulation.add(100, 5);
  leader.followers = 2;
  simulation.add(10, 5);
  Job& third = simulation.add(10, 5);
  simulation.step();
  EXPECT_EQ(third.state, Schedulable::State::waiting);
  const Plan plan = simulation.scheduler.plan();
  const auto chunk = std::ranges::find(plan.chunks, &leader, &Chunk::item);
  ASSERT_NE(chunk, plan.chunks.end());
  EXPECT_EQ(chunk->draws, 3);
}

TEST(Scheduler, PromptRowsAreBounded) {
  Simulation simulation({.tokens = 100, .sequences = 4, .prompt_rows = 7}, 16);
  Job& job = simulation.add(50, 1);
  job.rows_end = 49;
  int chunks = 0;
  while (!job.done()) {
    const Plan plan = simulation.scheduler.plan();
    ASSERT_EQ(plan.chunks.size(), 1u);
    const Chunk& chunk = plan.chunks[0];
    EXPECT_LE(std::min(chunk.first() + chunk.count, job.rows_end) - job.rows_done, 7);
    job.rows_done = std::min(chunk.first() + chunk.count, job.rows_end);
    ++chunks;
    if (chunk.draws > 0) job.tokens.push_back(1);
  }
  EXPECT_EQ(chunks, 7);
}

// Random loads over small pools: everything ends, nothing leaks, and what was said above holds in every step.
TEST(Scheduler, RandomLoadsEnd) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(random()) % (high - low + 1);
    };
    const auto pages = static_cast<std::int32_t>(pick(3, 20));
    const std::int64_t sequences = pick(1, 8);
    Simulation simulation({.tokens = sequences + pick(0, 200), .sequences = sequences}, pages, seed % 2 == 1);
    const std::int64_t context = std::int64_t{pages} * 128;
    for (int i = 0; i < 30; ++i) {
      const std::int64_t prompt = pick(1, context - 1);
      simulation.add(prompt, std::min(context - prompt, pick(1, 200)), static_cast<int>(pick(0, 2)));
      for (std::int64_t step = pick(0, 20); step > 0 && !simulation.scheduler.running().empty(); --step)
        simulation.step();
      if (pick(0, 9) == 0) {
        Job& gone = *simulation.jobs[static_cast<std::size_t>(pick(0, i))];
        if (!gone.done()) {
          simulation.scheduler.remove(gone);
          gone.reply = static_cast<std::int64_t>(gone.tokens.size()) - gone.prompt;
        }
      }
    }
    simulation.run_all(100'000);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Scheduler, WhatWasPreemptedFindsItsBlocksAgain) {
  Simulation simulation({.tokens = 512, .sequences = 4}, 11, true);
  Job& low = simulation.add(300, 50, 1);
  simulation.step();
  simulation.add(1100, 1, 0);  // nine pages where eight are free
  simulation.step();
  EXPECT_EQ(low.state, Schedulable::State::waiting);
  simulation.run_all(200);
  EXPECT_EQ(simulation.preemptions, 1);
  EXPECT_EQ(low.cached_tokens, 256);
}

}  // namespace
}  // namespace m3::engine
