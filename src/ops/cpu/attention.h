// Attention of a batch, for both operations: which thread computes what, in an order that no thread count changes.
//
// The keys of a token come in segments of segment_runs pages. A segment's softmax starts anew; segments are merged in
// ascending order. So one long context can be split among threads and gives the same bits as on one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/host/pages.h"
#include "src/ops/host/rows.h"

namespace m3::ops::cpu {

inline constexpr std::int64_t segment_runs = 4;

inline std::int64_t segments_of(std::int64_t runs) { return (runs + segment_runs - 1) / segment_runs; }

inline AttentionState take_state(Arena& arena) {
  return {arena.take<float>(max_heads), arena.take<float>(max_heads), arena.take<float>(max_heads * head_dim)};
}

// One thread's memory.
struct AttentionPart {
  explicit AttentionPart(Arena& arena)
      : q(arena.take<float>(head_dim * max_heads)),
        rows(arena.take<float>(key_chunk * head_dim)),
        scores(arena.take<float>(page_tokens * max_heads)),
        row(arena.take<float>(head_dim)),
        whole(take_state(arena)),
        segment(take_state(arena)) {}
  float* q;
  float* rows;
  float* scores;
  float* row;
  AttentionState whole;
  AttentionState segment;
};

// A page's rows in fp32, for several queries; null = each call widens them for itself.
struct WideRows {
  const float* k = nullptr;
  const float* v = nullptr;
};

// States of segments on their way to being merged.
struct AttentionPartials {
  AttentionPartials(Arena& arena, std::int64_t count)
      : has_keys(arena.take<std::uint8_t>(count)), states(arena.take<std::byte>(count * bytes_of_state())) {}
  static std::int64_t bytes_of_state() {
    Arena counting;
    take_state(counting);
    return counting.used();
  }
  AttentionState operator[](std::int64_t index) const {
    Arena piece({states + index * bytes_of_state(), static_cast<std::size_t>(bytes_of_state())});
    return take_state(piece);
  }
  std::uint8_t* has_keys;
  std::byte* states;
};

// Query heads that one task handles: a KV head's group, or 16 of them.
struct HeadSplit {
  HeadSplit(const Attention& args, int lanes)
      : group(args.query_heads / args.kv_heads),
        pieces((group + max_heads - 1) / max_heads),
        padded(std::min(group, max_heads) <= lanes ? lanes : max_heads) {}
  int group;
  int pieces;
  int padded;  // heads of a state: lanes or 16
};

class AttentionTasks {
 public:
  AttentionTasks(const Kernels& kernels, const Attention& args, const Tensor& q, const LayerPages& pages,
                 const Tensor& out)
      : kernels_(kernels), args_(args), split_(args, kernels.lanes), q_(q), pages_(pages), out_(out) {}

  std::int64_t count(std::int64_t tokens) const { return tokens * tasks_of_token(); }
  std::int64_t token(std::int64_t task) const { return task / tasks_of_token(); }
  std::int64_t kv_head(std::int64_t task) const { return task % tasks_of_token() / split_.pieces; }

  int tasks_per_token() const { return args_.kv_heads * split_.pieces; }
  void begin(const AttentionState& state) const { kernels_.attention_begin(split_.padded, state); }
  void widen(std::int64_t task, const KeyRun& run, float* k, float* v) const;
  void attend_run(std::int64_t task, const KeyRun& run, const WideRows& wide, const AttentionPart& part,
                  const AttentionState& state) const;
  void load_query(std::int64_t task, const AttentionPart& part) const;
  // The state of runs [begin, end); false where they hold no key. The query must be loaded.
  template <typename Run>
  bool attend_segment(std::int64_t task, std::int64_t begin, std::int64_t end, const Run& run,
                      const AttentionPart& part, const AttentionState& state) const {
    bool any = false;
    for (std::int64_t i = begin; i < end; ++i) {
      const KeyRun at = run(i);
      if (at.empty()) continue;
      if (!any) kernels_.attention_begin(split_.padded, state);
      any = true;
      attend_run(task, at, {}, part, state);
    }
    return any;
  }
  void merge(const AttentionState& into, const AttentionState& other) const {
    kernels_.attention_merge(split_.padded, into, other);
  }
  // Divides and writes the heads of a task, rounded.
  void store(std::int64_t task, const AttentionPart& part, const AttentionState& state) const;

 private:
  std::int64_t tasks_of_token() const { return tasks_per_token(); }
  std::int64_t first_head(std::int64_t task) const {
    return kv_head(task) * split_.group + task % split_.pieces * max_heads;
  }
  int heads(std::int64_t task) const {
    return std::min(max_heads, split_.group - static_cast<int>(task % split_.pieces) * max_heads);
  }
  const std::byte* row(const PagePart& pages, std::int64_t task, const KeyRun& run) const;

  const Kernels& kernels_;
  const Attention& args_;
  HeadSplit split_;
  const Tensor& q_;
  const LayerPages& pages_;
  const Tensor& out_;
};

// Partials that fit the workspace: at least one token's segments.
inline std::int64_t partial_capacity(std::int64_t context) {
  return std::max<std::int64_t>(256, segments_of((context + page_tokens - 1) / page_tokens) + 1);
}

// runs(task): how many runs the task's token has, 0 where its row is inert; run(task, i): the i-th.
template <typename Runs, typename Run>
void attend_batch(ThreadPool& pool, Arena arena, std::int64_t context, std::int64_t tokens, const AttentionTasks& tasks,
                  const Runs& runs, const Run& run) {
  const std::int64_t capacity = partial_capacity(context);
  const AttentionPartials partials(arena, capacity);
  const ThreadArenas parts(arena, pool.size(), bytes_of<AttentionPart>());
  const std::int64_t count = tasks.count(tokens);
  const auto run_of = [&](std::int64_t task) { return [&run, task](std::int64_t i) { return run(task, i); }; };

  // Enough tasks for all threads: one task, one thread.
  if (pool.size() == 1 || count >= 4 * pool.size()) {
    pool.each(count, [&](std::int64_t task, int thread) {
      const std::int64_t all = runs(task);
      if (all == 0) return;
      Arena own = parts[thread];
      const AttentionPart part(own);
      tasks.load_query(task, part);
      bool any = false;
      for (std::int64_t begin = 0; begin < all; begin += segment_runs) {
        const std::int64_t end = std::min(all, begin + segment_runs);
        if (!any) {
          any = tasks.attend_segment(task, begin, end, run_of(task), part, part.whole);
        } else if (tasks.attend_segment(task, begin, end, run_of(task), part, part.segment)) {
          tasks.merge(part.whole, part.segment);
        }
      }
      if (any) tasks.store(task, part, part.whole);
    });
    return;
  }

  std::int64_t most = 0;
  for (std::int64_t task = 0; task < count; ++task) most = std::max(most, segments_of(runs(task)));
  if (most == 0) return;
  if (most > capacity) fail_internal("attention over {} segments where {} were planned", most, capacity);
  const std::int64_t wave = capacity / most;
  for (std::int64_t first = 0; first < count; first += wave) {
    const std::int64_t rows = std::min(wave, count - first);
    pool.each(rows * most, [&](std::int64_t index, int thread) {
      const std::int64_t task = first + index / most;
      const std::int64_t begin = index % most * segment_runs;
      const std::int64_t end = std::min(runs(task), begin + segment_runs);
      partials.has_keys[index] = 0;
      if (begin >= end) return;
      Arena own = parts[thread];
      const AttentionPart part(own);
      tasks.load_query(task, part);
      partials.has_keys[index] = tasks.attend_segment(task, begin, end, run_of(task), part, partials[index]) ? 1 : 0;
    });
    pool.each(rows, [&](std::int64_t row, int thread) {
      Arena own = parts[thread];
      const AttentionPart part(own);
      std::int64_t base = -1;
      for (std::int64_t index = row * most; index < (row + 1) * most; ++index) {
        if (partials.has_keys[index] == 0) continue;
        if (base < 0) {
          base = index;
        } else {
          tasks.merge(partials[base], partials[index]);
        }
      }
      if (base >= 0) tasks.store(first + row, part, partials[base]);
    });
  }
}

}  // namespace m3::ops::cpu
