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
  }
  // Each request's ids are its own.
  void take_prompt() { tokens.assign(static_cast<std::size_t>(prompt), static_cast<TokenId>(rank.request)); }
  std::int64_t ready() const override { return std::clamp<std::int64_t>(known - pages.length(), 0, pending()); }
  std::int64_t prompt, reply;
  std::int64_t known = std::int64_t{1} << 40;  // tokens that may be computed
  std::int64_t first_token_step = -1, last_step = -1;
  bool done() const { return static_cast<std::int64_t>(tokens.size()) == prompt + reply; }
};

RequestId request_of(const std::unique_ptr<Job>& job) { return job->rank.request; }

class Simulation {
 public:
  Simulation(const SchedulerLimits& of, std::int32_t pages, bool cached = false)
      : limits(of), pool(layout(), pages), tree(pool, "m"), scheduler(of, pool, cached ? &tree : nullptr) {}

  // The first sample; the others stand behind it in `jobs`.
  Job& add(std::int64_t prompt, std::int64_t reply, int priority = 0, int samples = 1) {
    const std::size_t first = jobs.size();
    ++requests;
    for (int sample = 0; sample < samples; ++sample)
      jobs.push_back(std::make_unique<Job>(pool, Rank{priority, requests, sample}, prompt, reply));
    begin(first);
    return *jobs[first];
  }

  // The sample takes the prompt, with those after it as its followers.
  void begin(std::size_t index) {
    Job& job = *jobs[index];
    job.take_prompt();
    job.followers = static_cast<int>(std::ranges::count(jobs, job.rank.request, request_of)) - job.rank.sample - 1;
    scheduler.enqueue(job);
  }

  // All samples of a request, whatever their state.
  void cancel(RequestId request) {
    for (const auto& job : jobs) {
      if (job->rank.request != request || job->done()) continue;
      scheduler.remove(*job);
      job->reply = static_cast<std::int64_t>(job->tokens.size()) - job->prompt;
    }
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
    for (const Chunk& chunk : plan.chunks) scheduler.computed(chunk);
    std::vector<Job*> ended;
    for (const Chunk& chunk : plan.chunks) {
      const auto index = static_cast<std::size_t>(
          std::ranges::find(jobs, chunk.item, [](const auto& job) -> Schedulable* { return job.get(); }) -
          jobs.begin());
      for (int i = 0; i < chunk.draws; ++i) {
        Job& job = *jobs[index + static_cast<std::size_t>(i)];
        if (i > 0) job.take_prompt();
        job.tokens.push_back(static_cast<TokenId>(job.rank.request));
        if (job.first_token_step < 0) job.first_token_step = steps;
        if (job.done()) {
          job.last_step = steps;
          ended.push_back(&job);
        } else if (i > 0) {
          scheduler.fork(*chunk.item, job, copies);
        }
      }
      if (chunk.draws == 0 || chunk.item->followers == 0) continue;
      EXPECT_LE(chunk.draws - 1, chunk.item->followers);
      if (chunk.draws - 1 < chunk.item->followers) begin(index + static_cast<std::size_t>(chunk.draws));
      chunk.item->followers = 0;
    }
    for (Job* job : ended) scheduler.remove(*job);
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
  RequestId requests = 0;
  std::vector<kv::SequencePages::Copy> copies;
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
  Simulation simulation({.tokens = 64, .sequences = 6}, 16);
  Job& leader = simulation.add(90, 5, 0, 3);
  for (int i = 0; i < 3; ++i) simulation.add(10, 50);
  Job& fifth = simulation.add(10, 5);
  simulation.step();
  EXPECT_EQ(fifth.state, Schedulable::State::waiting);
  const Plan plan = simulation.step();
  const auto chunk = std::ranges::find(plan.chunks, &leader, &Chunk::item);
  ASSERT_NE(chunk, plan.chunks.end());
  EXPECT_EQ(chunk->draws, 3);
  EXPECT_EQ(fifth.state, Schedulable::State::waiting);
  simulation.run_all(200);
}

// More samples than there are places keep nobody from beginning while their prompt is computed.
TEST(Scheduler, ManySamplesLeaveHalfThePlaces) {
  for (const std::int64_t sequences : {2, 3, 4, 8, 64}) {
    for (const std::int64_t samples : {sequences, 2 * sequences, 5 * sequences}) {
      Simulation simulation({.tokens = 64 + sequences, .sequences = sequences}, 2048);
      const Job& large = simulation.add(6400, 20, 0, static_cast<int>(samples));
      simulation.step();
      const std::int64_t half = sequences / 2;
      std::vector<const Job*> newcomers;
      for (std::int64_t i = 0; i < half; ++i) newcomers.push_back(&simulation.add(8, 3));
      simulation.step();
      EXPECT_EQ(std::ssize(simulation.scheduler.running()), 1 + half);
      while (large.first_token_step < 0 && simulation.steps < 1000) simulation.step();
      for (const Job* job : newcomers) EXPECT_TRUE(job->done()) << sequences << " places, " << samples << " samples";
      EXPECT_EQ(std::ssize(simulation.scheduler.running()), sequences);  // nobody else wants them
      simulation.run_all(2000);
    }
  }
}

// Beside a stream of newcomers every request's samples get done, each further half of the places behind as many newer
// requests; and no newcomer waits for all of them.
TEST(Scheduler, ManySamplesAndNewcomersTakeTurns) {
  Simulation simulation({.tokens = 64, .sequences = 8}, 512);
  std::vector<const Job*> large;
  for (int i = 0; i < 3; ++i) {
    simulation.add(500, 40, 0, 24);
    large.push_back(simulation.jobs.back().get());
  }
  const std::size_t first_newcomer = simulation.jobs.size();
  while (std::ranges::any_of(large, [](const Job* last) { return !last->done(); }) && simulation.steps < 20'000) {
    if (simulation.scheduler.waiting() < 20) simulation.add(30, 40);
    simulation.step();
  }
  for (const Job* last : large) {
    EXPECT_TRUE(last->done());
    EXPECT_LT(simulation.jobs[first_newcomer]->last_step, last->first_token_step);
    // The last four of its samples: behind as many requests as there are samples before them.
    EXPECT_GT(last->first_token_step, simulation.jobs[first_newcomer + 15]->first_token_step);
  }
  simulation.run_all(50'000);
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

// Random loads over small pools, some of many samples, some cancelled in whatever state: everything ends, nothing leaks, and what was said above holds in every step.
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
      const auto samples = static_cast<int>(pick(0, 3) == 0 ? pick(2, 3 * sequences + 2) : 1);
      simulation.add(prompt, std::min(context - prompt, pick(1, 200)), static_cast<int>(pick(0, 2)), samples);
      for (std::int64_t step = pick(0, 20); step > 0 && !simulation.scheduler.running().empty(); --step)
        simulation.step();
      if (pick(0, 4) == 0) simulation.cancel(static_cast<RequestId>(pick(1, i + 1)));
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
