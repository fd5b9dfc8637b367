// Gated MLPs over lists of tokens: what experts and mlp share.
#pragma once

#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"

namespace m3::ops::cpu {

// One MLP and the tokens it is for: entries [begin, begin + count) of the lists.
struct MlpJob {
  const MlpWeights* weights = nullptr;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

struct MlpScratch {
  MlpScratch(Arena& arena, std::int64_t tokens, std::int64_t entries, std::int64_t jobs_count, std::int64_t hidden,
             std::int64_t width)
      : sums(arena.take<float>(tokens * hidden)),
        tokens_of(arena.take<std::int32_t>(entries)),
        weights_of(arena.take<float>(entries)),
        jobs(arena.take<MlpJob>(jobs_count)),
        x(arena, block_tokens, std::max(hidden, width)),
        activations(arena.take<std::uint16_t>(block_tokens * width)) {}
  float* sums;                 // [tokens, hidden] in fp32
  std::int32_t* tokens_of;     // [entries] token of an entry
  float* weights_of;           // [entries] what its result is multiplied by
  MlpJob* jobs;                // [jobs] in the order of summation
  PackedX x;                   // one job's block of entries
  std::uint16_t* activations;  // [block_tokens, width] between the two halves of an MLP
};

class MlpRunner {
 public:
  MlpRunner(const Kernels& kernels, ThreadPool& pool, const MlpScratch& memory, const ThreadArenas& parts,
            const Tensor& hidden, std::int64_t width, const Activation& activation)
      : kernels_(kernels),
        pool_(pool),
        memory_(memory),
        parts_(parts),
        hidden_(hidden),
        widest_(std::max(hidden.columns, width)),
        activation_(activation) {}

  // sums[token] += weight · MLP(hidden[token]) for every entry, job after job.
  void run(std::int64_t jobs);

 private:
  // Jobs of few entries each, together: every thread widens their tokens for itself, two barriers for all.
  void run_few(const MlpJob* jobs, std::int64_t count);
  // A block of one job's entries.
  void run_block(const MlpJob& job, std::int64_t begin, std::int64_t count);
  void run_threads(std::int64_t products, FunctionRef<void(int thread, int threads)> work);

  const std::uint16_t* hidden_row(std::int64_t entry) const {
    return reinterpret_cast<const std::uint16_t*>(hidden_.row(memory_.tokens_of[entry]));
  }
  // This thread's rows of act(gate · x, up · x) into activations from row `first_row`.
  void activate(const MlpWeights& weights, const PackedX& x, std::int64_t first_row, int thread, int threads,
                const MatmulScratch& matmul) const;
  // This thread's rows of sums += weight · down · x.
  void add_down(const MlpWeights& weights, const PackedX& x, std::int64_t first_entry, int thread, int threads,
                const MatmulScratch& matmul) const;

  const Kernels& kernels_;
  ThreadPool& pool_;
  const MlpScratch& memory_;
  const ThreadArenas& parts_;
  const Tensor& hidden_;
  std::int64_t widest_;
  const Activation& activation_;
};

// Errors (internal): the three matrices do not fit one another or the hidden size.
void check_mlp(const MlpWeights& weights, std::int64_t hidden);

}  // namespace m3::ops::cpu
