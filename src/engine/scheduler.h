// Who computes what in the next step: decisions over token counts and pages alone, no model (docs/engine.md).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "m3/request.h"
#include "src/kv/page_pool.h"
#include "src/kv/prefix_tree.h"

namespace m3::engine {

// Lower runs first: by priority, within one by turn. A request's turn is its id, in the order of arrival. Its samples
// stand there as far as half of the places goes; each further half stands behind as many newer requests, which so can
// begin beside any number of samples. Turns never change: whoever ranks first gets done, then the next.
struct Rank {
  int priority = 0;
  RequestId request = 0;
  int sample = 0;
  RequestId turn = 0;  // the scheduler's
  std::strong_ordering operator<=>(const Rank& other) const {
    return std::tie(priority, turn, sample, request) <=>
           std::tie(other.priority, other.turn, other.sample, other.request);
  }
  bool operator==(const Rank&) const = default;
};

// What the scheduler knows of one sample.
struct Schedulable {
  explicit Schedulable(kv::PagePool& pool) : pages(pool) {}
  virtual ~Schedulable() = default;

  Rank rank;
  std::vector<TokenId> tokens;  // known: the prompt, then the reply so far
  kv::SequencePages pages;      // of the tokens that are computed, or are in the step planned last
  kv::PrefixTree::Lease lease;
  std::string cache_salt;
  std::vector<std::string> block_salts;  // of the first blocks: which pictures stand in each; "" for none
  std::int64_t cached_tokens = 0;        // taken from the prefix cache when it last began
  // Samples of the same request, the next ones in number, that wait for this one's prompt, to go on from it.
  int followers = 0;
  // Prompt positions [rows_done, rows_end) whose logits are wanted besides the draw; nothing from rows_done on is
  // taken from the prefix cache.
  std::int64_t rows_done = 0, rows_end = 0;

  std::string_view block_salt(std::int64_t block) const {
    return block < std::ssize(block_salts) ? block_salts[static_cast<std::size_t>(block)] : std::string_view();
  }
  std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - pages.length(); }
  // Of these, the first ones that may be computed now: all, unless something that they need is not there yet.
  virtual std::int64_t ready() const { return pending(); }

  enum class State : std::uint8_t { outside, waiting, running };
  State state = State::outside;  // the scheduler's
  bool planned = false;          // likewise: has a chunk in the plan
};

struct SchedulerLimits {
  std::int64_t tokens = 512;      // of one step; at least `sequences`
  std::int64_t sequences = 64;    // running at the same time
  std::int64_t prompt_rows = 64;  // logits of prompt positions in one step
};

// The last `count` tokens of item.pages are computed in this step.
struct Chunk {
  Schedulable* item = nullptr;
  std::int64_t count = 0;
  int draws = 0;  // tokens drawn after its last one: by the item, then by its first followers; 0: the prompt goes on
  std::int64_t first() const { return item->pages.length() - count; }
};

struct Plan {
  std::vector<Chunk> chunks;           // decodes first
  std::vector<Schedulable*> admitted;  // began, or began again
  std::int64_t preempted = 0;
};

class Scheduler {
 public:
  // `cache` null: no prefix cache.
  Scheduler(const SchedulerLimits& limits, kv::PagePool& pool, kv::PrefixTree* cache);
  // Called in plan() for whom has begun, or begun again, with pages of what the cache had.
  void on_begin(std::function<void(Schedulable& item)> look) { on_begin_ = std::move(look); }

  void enqueue(Schedulable& item);  // waits its turn
  void remove(Schedulable& item);   // finished or cancelled, wherever it stands; its pages are free
  // Every running sequence with one pending token gets it; what is left of the token budget goes to prompts.
  Plan plan();
  // A chunk's tokens are computed: its full blocks go to the prefix cache.
  void computed(const Chunk& chunk);
  // `item` goes on beside `from`, whose prompt it shares, or waits where there is no place or page for it. A page to
  // copy before the next step is added to `copies`.
  void fork(const Schedulable& from, Schedulable& item, std::vector<kv::SequencePages::Copy>& copies);

  std::span<Schedulable* const> running() const { return running_; }  // by rank
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct ByRank {
    bool operator()(const Schedulable* a, const Schedulable* b) const { return a->rank < b->rank; }
  };

  void admit(Plan& plan);
  bool begin(Schedulable& item);
  void decode(Plan& plan, std::int64_t& budget);
  void prefill(Plan& plan, std::int64_t& budget);
  void share_out(std::span<Schedulable*> prompts, std::int64_t& budget, Plan& plan);
  enum class Need : std::uint8_t { all, some };
  std::int64_t reserve(Schedulable& item, std::int64_t count, Need need, Plan& plan);
  void add_chunk(Schedulable& item, std::int64_t count, Plan& plan);
  void run(Schedulable& item);
  RequestId turn_of(const Rank& rank) const;
  std::int64_t followers_before(const Schedulable& item, const Rank& rank) const;
  void release(Schedulable& item);
  void preempt(Schedulable& item, Plan& plan);
  bool make_room(std::int64_t pages);
  std::int64_t available_pages() const;

  SchedulerLimits limits_;
  kv::PagePool& pool_;
  kv::PrefixTree* cache_;
  std::function<void(Schedulable& item)> on_begin_;
  std::vector<Schedulable*> running_;  // by rank
  std::set<Schedulable*, ByRank> waiting_;
  std::int64_t promised_forks_ = 0;  // places that draws of this plan will take
  std::int64_t prompt_rows_ = 0;     // left in this plan
  // The first in the queue did not fit; it is not tried again before something has left.
  const Schedulable* blocked_ = nullptr;
  std::uint64_t left_ = 0, blocked_at_ = 0;
};

}  // namespace m3::engine
