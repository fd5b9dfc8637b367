#include "src/engine/scheduler.h"

#include <algorithm>

#include "src/base/error.h"

namespace m3::engine {

namespace {

using State = Schedulable::State;

std::int64_t pages_for(std::int64_t tokens) { return (tokens + 127) / 128; }
std::int64_t pages_held(const Schedulable& item) { return static_cast<std::int64_t>(item.pages.pages().size()); }
// That its known tokens need beyond those it has.
std::int64_t pages_missing(const Schedulable& item) {
  return pages_for(static_cast<std::int64_t>(item.tokens.size())) - pages_held(item);
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, kv::PagePool& pool, kv::PrefixTree* cache)
    : limits_(limits), pool_(pool), cache_(cache) {
  if (limits.sequences < 1 || limits.tokens < limits.sequences)
    fail_internal("a step of {} tokens for {} sequences", limits.tokens, limits.sequences);
}

RequestId Scheduler::turn_of(const Rank& rank) const {
  const std::int64_t half = std::max<std::int64_t>(1, limits_.sequences / 2);
  return rank.request + static_cast<RequestId>(rank.sample / half * half);
}

// Of the item's followers, those that rank before `rank`.
std::int64_t Scheduler::followers_before(const Schedulable& item, const Rank& rank) const {
  Rank next = item.rank;
  for (int before = 0; before < item.followers; ++before) {
    ++next.sample;
    next.turn = turn_of(next);
    if (rank < next) return before;
  }
  return item.followers;
}

void Scheduler::enqueue(Schedulable& item) {
  item.rank.turn = turn_of(item.rank);
  item.state = State::waiting;
  waiting_.insert(&item);
}

void Scheduler::remove(Schedulable& item) {
  if (item.state == State::running) std::erase(running_, &item);
  if (item.state == State::waiting) waiting_.erase(&item);
  release(item);
  item.state = State::outside;
}

void Scheduler::run(Schedulable& item) {
  item.state = State::running;
  item.planned = false;
  running_.insert(std::ranges::upper_bound(running_, &item, ByRank{}), &item);
}

void Scheduler::release(Schedulable& item) {
  item.lease.reset();
  item.pages.truncate(0);
  ++left_;
}

void Scheduler::preempt(Schedulable& item, Plan& plan) {
  std::erase(running_, &item);
  std::erase(plan.admitted, &item);
  release(item);
  enqueue(item);
  ++plan.preempted;
}

std::int64_t Scheduler::available_pages() const {
  return pool_.free_pages() + (cache_ != nullptr ? cache_->idle() : 0);
}

bool Scheduler::make_room(std::int64_t pages) {
  while (pool_.free_pages() < pages) {
    if (cache_ == nullptr || !cache_->evict()) return false;
  }
  return true;
}

Plan Scheduler::plan() {
  Plan plan;
  promised_forks_ = 0;
  prompt_rows_ = limits_.prompt_rows;
  std::int64_t budget = limits_.tokens;
  for (Schedulable* item : running_) item->planned = false;
  admit(plan);
  decode(plan, budget);
  prefill(plan, budget);
  return plan;
}

// The queue in order of rank; who does not fit holds up those behind, so that nobody starves. Only a strictly lower
// priority number takes the place of what runs.
void Scheduler::admit(Plan& plan) {
  while (!waiting_.empty()) {
    Schedulable& first = **waiting_.begin();
    if (&first == blocked_ && left_ == blocked_at_) return;
    while (!begin(first)) {
      if (running_.empty()) {
        fail_internal("a sequence of {} tokens does not fit into {} empty pages", first.tokens.size(), pool_.pages());
      }
      Schedulable& last = *running_.back();
      if (last.rank.priority <= first.rank.priority) {
        blocked_ = &first;
        blocked_at_ = left_;
        return;
      }
      preempt(last, plan);
    }
    plan.admitted.push_back(&first);
  }
}

// Into the running ones, where a place is free and so many pages that all who run can finish their known tokens.
bool Scheduler::begin(Schedulable& item) {
  std::int64_t places = static_cast<std::int64_t>(running_.size());
  for (const Schedulable* other : running_) places += followers_before(*other, item.rank);
  if (!running_.empty() && places >= limits_.sequences) return false;
  if (cache_ != nullptr) {
    // The last token is always computed: its logits are needed. So is all whose logits are wanted.
    std::int64_t most = static_cast<std::int64_t>(item.tokens.size()) - 1;
    if (item.rows_done < item.rows_end) most = std::min(most, item.rows_done);
    item.lease = cache_->match(item.cache_salt, item.tokens, most / 128, item.pages, item.block_salts);
  }
  std::int64_t needed = pages_missing(item);
  for (const Schedulable* other : running_) needed += pages_missing(*other);
  if (needed > available_pages()) {
    item.lease.reset();
    item.pages.truncate(0);
    return false;
  }
  item.cached_tokens = item.pages.length();
  waiting_.erase(&item);
  run(item);
  if (on_begin_) on_begin_(item);
  return true;
}

void Scheduler::decode(Plan& plan, std::int64_t& budget) {
  // Who has to make room stands behind, so this may end early.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Schedulable& item = *running_[i];
    if (item.pending() != 1 || item.ready() < 1 || reserve(item, 1, Need::all, plan) == 0) continue;
    add_chunk(item, 1, plan);
    --budget;
  }
}

void Scheduler::prefill(Plan& plan, std::int64_t& budget) {
  std::vector<Schedulable*> prompts;
  for (Schedulable* item : running_) {
    if (item->pending() > 1 && item->ready() > 0) prompts.push_back(item);
  }
  for (auto begin = prompts.begin(); begin != prompts.end() && budget > 0;) {
    const auto end = std::find_if(
        begin, prompts.end(), [&](const Schedulable* item) { return item->rank.priority != (*begin)->rank.priority; });
    share_out({begin, end}, budget, plan);
    begin = end;
  }
}

// Half of the budget goes to the oldest prompt, so that it gets done whatever comes; the rest to the shortest ones, so
// that they need not wait for a long one; what these leave to the oldest again.
void Scheduler::share_out(std::span<Schedulable*> prompts, std::int64_t& budget, Plan& plan) {
  Schedulable* oldest = prompts.front();
  const std::int64_t own = std::min(oldest->ready(), prompts.size() == 1 ? budget : (budget + 1) / 2);
  std::int64_t rest = budget - own;
  std::vector<Schedulable*> others(prompts.begin() + 1, prompts.end());
  std::ranges::stable_sort(others, {}, &Schedulable::ready);
  std::vector<std::pair<Schedulable*, std::int64_t>> shares = {{oldest, 0}};
  for (Schedulable* item : others) {
    shares.emplace_back(item, std::min(item->ready(), rest));
    rest -= shares.back().second;
  }
  shares.front().second = std::min(oldest->ready(), own + rest);
  for (const auto& [item, share] : shares) {
    if (item->state != State::running) continue;  // it made room
    const std::int64_t first = item->pages.length();
    const std::int64_t wanted_from = std::max(first, item->rows_done);
    const auto rows = [&](std::int64_t count) {
      return std::max<std::int64_t>(0, std::min(first + count, item->rows_end) - wanted_from);
    };
    std::int64_t count = rows(share) > prompt_rows_ ? wanted_from + prompt_rows_ - first : share;
    if (count > 0) count = reserve(*item, count, Need::some, plan);
    if (count == 0) continue;
    prompt_rows_ -= rows(count);
    add_chunk(*item, count, plan);
    budget -= count;
  }
}

// Pages for `count` more tokens, at the price of the lowest-ranking sequences that have no part in the plan yet. Who
// ranks lowest itself gives up its own with Need::all, and makes do with fewer tokens otherwise. Returns how many
// tokens have pages.
std::int64_t Scheduler::reserve(Schedulable& item, std::int64_t count, Need need, Plan& plan) {
  while (!make_room(pages_for(item.pages.length() + count) - pages_held(item))) {
    Schedulable& last = *running_.back();
    if (!last.planned && (&last != &item || need == Need::all)) {
      preempt(last, plan);
      if (&last == &item) return 0;
      continue;
    }
    count = std::min(count, (pages_held(item) + available_pages()) * 128 - item.pages.length());
    if (count <= 0) return 0;
  }
  if (!item.pages.extend(count)) fail_internal("no page after room was made");
  return count;
}

void Scheduler::add_chunk(Schedulable& item, std::int64_t count, Plan& plan) {
  item.planned = true;
  Chunk chunk{.item = &item, .count = count, .draws = item.pending() == 0 ? 1 : 0};
  if (chunk.draws == 1 && item.followers > 0) {
    const std::int64_t places = limits_.sequences - static_cast<std::int64_t>(running_.size()) - promised_forks_;
    // Who waits and did not fit holds up followers too.
    const std::int64_t may = waiting_.empty() ? item.followers : followers_before(item, (*waiting_.begin())->rank);
    const auto forks = std::clamp<std::int64_t>(places, 0, may);
    promised_forks_ += forks;
    chunk.draws += static_cast<int>(forks);
  }
  plan.chunks.push_back(chunk);
}

void Scheduler::computed(const Chunk& chunk) {
  if (cache_ == nullptr) return;
  Schedulable& item = *chunk.item;
  while ((item.lease.blocks() + 1) * 128 <= item.pages.length()) {
    const auto block = std::span(item.tokens).subspan(static_cast<std::size_t>(item.lease.blocks() * 128), 128);
    if (!cache_->extend(item.lease, block, item.pages, item.block_salt(item.lease.blocks()))) return;
  }
}

void Scheduler::fork(const Schedulable& from, Schedulable& item, std::vector<kv::SequencePages::Copy>& copies) {
  kv::SequencePages::Copy copy;
  const bool partial = from.pages.length() % 128 != 0;
  if (static_cast<std::int64_t>(running_.size()) >= limits_.sequences || !make_room(partial ? 1 : 0) ||
      !item.pages.fork(from.pages, copy)) {
    return enqueue(item);
  }
  if (cache_ != nullptr) item.lease = cache_->share(from.lease);
  if (partial) copies.push_back(copy);
  item.rank.turn = turn_of(item.rank);
  run(item);
}

}  // namespace m3::engine
