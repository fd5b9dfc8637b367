#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/sample_math.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int sample_threads = 1024;
constexpr int sample_warps = sample_threads / warp_size;

struct Shared {
  std::uint64_t warps[sample_warps];
  std::uint64_t bins[256];
  std::uint64_t total;
  std::uint32_t prefix;
  std::uint64_t above;
  std::uint64_t at;
};

__device__ std::uint64_t block_highest(std::uint64_t value, Shared& shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const std::uint64_t other = __shfl_xor_sync(all_lanes, value, offset);
    value = other > value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % warp_size == 0) shared.warps[threadIdx.x / warp_size] = value;
  __syncthreads();
  std::uint64_t highest = 0;
  for (int w = 0; w < sample_warps; ++w) highest = shared.warps[w] > highest ? shared.warps[w] : highest;
  return highest;
}

// What the threads before this one hold together, and the sum of all in shared.total.
__device__ std::uint64_t block_before(std::uint64_t value, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  std::uint64_t sum = value;
  for (int offset = 1; offset < warp_size; offset *= 2) {
    const std::uint64_t other = __shfl_up_sync(all_lanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == warp_size - 1) shared.warps[warp] = sum;
  __syncthreads();
  std::uint64_t before = 0, total = 0;
  for (int w = 0; w < sample_warps; ++w) {
    if (w < warp) before += shared.warps[w];
    total += shared.warps[w];
  }
  __syncthreads();
  if (threadIdx.x == 0) shared.total = total;
  __syncthreads();
  return before + sum - value;
}

// The place in the order of keys where the amounts of the ids, summed from the highest key down, first reach `wanted`:
// shared.prefix is that key, shared.above the sum over higher keys, shared.at the sum over ids of that very key. Amounts
// are integers, so that their order does not matter. `wanted` is at most the sum of all.
template <typename Amount>
__device__ void find_key(const float* logits, int vocab, std::uint64_t wanted, Shared& shared, const Amount& amount) {
  std::uint32_t prefix = 0;
  std::uint64_t above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += sample_threads) shared.bins[i] = 0;
    __syncthreads();
    for (int id = static_cast<int>(threadIdx.x); id < vocab; id += sample_threads) {
      const std::uint32_t key = draw_key(logits[id]);
      if (key == 0 || (shift < 24 && key >> (shift + 8) != prefix)) continue;
      const std::uint64_t own = amount(id, key);
      if (own > 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&shared.bins[key >> shift & 255u]),
                  static_cast<unsigned long long>(own));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = 255;
      while (bin > 0 && above + shared.bins[bin] < wanted) above += shared.bins[bin--];
      shared.prefix = prefix << 8 | static_cast<std::uint32_t>(bin);
      shared.above = above;
      shared.at = shared.bins[bin];
    }
    __syncthreads();
    prefix = shared.prefix;
    above = shared.above;
    __syncthreads();
  }
}

// A block of threads a row: host/sampler's sample_row. Weights are integers of 40 bits below the highest one's, so that
// sums do not depend on their order; the host's are doubles, which agree but for draws within 2^-38 of a border.
__global__ void __launch_bounds__(sample_threads)
    sample_row_sm80(float* all_logits, std::int64_t stride, int vocab, const SampleRow* rows, std::uint32_t* all_counts,
                    std::int32_t* ids, std::uint8_t* finite) {
  wait_for_previous();
  __shared__ Shared shared;
  const SampleRow row = rows[blockIdx.x];
  float* logits = all_logits + blockIdx.x * stride;
  std::uint32_t* counts = all_counts + std::int64_t{blockIdx.x} * vocab;
  const int thread = static_cast<int>(threadIdx.x);

  if (finite != nullptr) {
    bool all = true;
    for (int id = thread; id < vocab; id += sample_threads) all = all && drawable(logits[id]);
    const int every = __syncthreads_and(all ? 1 : 0);
    if (thread == 0) finite[blockIdx.x] = every != 0 ? 1 : 0;
  }

  shape_logits(row, logits, counts, 0, vocab, thread, sample_threads);

  std::uint64_t best = 0;
  for (int id = thread; id < vocab; id += sample_threads) {
    const std::uint32_t key = draw_key(logits[id]);
    const std::uint64_t rank = std::uint64_t{key} << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
    if (key != 0 && rank > best) best = rank;
  }
  best = block_highest(best, shared);
  const int best_id = best == 0 ? -1 : static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(best));
  if (best_id < 0 || row.temperature <= 0) {
    if (thread == 0) ids[blockIdx.x] = best_id;
    return;
  }

  const float maximum = logits[best_id];
  const auto weight = [&](int id) { return expf((logits[id] - maximum) / row.temperature); };
  const auto amount = [&](int id) { return static_cast<std::uint64_t>(static_cast<double>(weight(id)) * 0x1p40); };
  // What is kept: keys above `least`, and the first `ties` ids (in order) of that very key.
  std::uint32_t least = 0;
  std::uint64_t ties = 0;
  if (row.top_k > 0 && row.top_k < vocab) {
    std::uint64_t all = 0;
    for (int id = thread; id < vocab; id += sample_threads) all += draw_key(logits[id]) != 0 ? 1 : 0;
    block_before(all, shared);
    const std::uint64_t drawable_ids = shared.total;
    __syncthreads();
    if (drawable_ids > static_cast<std::uint64_t>(row.top_k)) {
      find_key(logits, vocab, static_cast<std::uint64_t>(row.top_k), shared, [](int, std::uint32_t) { return 1u; });
      least = shared.prefix;
      ties = static_cast<std::uint64_t>(row.top_k) - shared.above;
      __syncthreads();
    }
  }
  if (row.top_p < 1) {
    // Over what top-k kept: its ties weigh the same, so only their number matters.
    const auto kept_amount = [&](int id, std::uint32_t key) -> std::uint64_t { return key > least ? amount(id) : 0; };
    std::uint64_t own = 0;
    std::uint64_t tie_amount = 0;
    for (int id = thread; id < vocab; id += sample_threads) {
      const std::uint32_t key = draw_key(logits[id]);
      if (key != 0) own += kept_amount(id, key);
      if (least != 0 && key == least) tie_amount = amount(id);
    }
    block_before(own, shared);
    const std::uint64_t above = shared.total;
    __syncthreads();
    tie_amount = block_highest(tie_amount, shared);
    const std::uint64_t total = above + ties * tie_amount;
    auto wanted = static_cast<std::uint64_t>(ceil(static_cast<double>(row.top_p) * static_cast<double>(total)));
    if (wanted < 1) wanted = 1;
    if (wanted > total) wanted = total;
    if (wanted <= above) {
      find_key(logits, vocab, wanted, shared, kept_amount);
      least = shared.prefix;
      const std::uint64_t missing = wanted - shared.above;
      __syncthreads();
      std::uint64_t tie = 0;
      for (int id = thread; id < vocab; id += sample_threads) {  // all ties weigh the same
        if (draw_key(logits[id]) == least) tie = amount(id);
      }
      tie = block_highest(tie, shared);
      const std::uint64_t each = tie > 0 ? tie : 1;
      ties = (missing + each - 1) / each;
      __syncthreads();
    } else if (tie_amount > 0) {
      ties = (wanted - above + tie_amount - 1) / tie_amount;
    }
  }

  // Candidates in order of id: each thread a run of ids.
  const int run = (vocab + sample_threads - 1) / sample_threads;
  const int first = thread * run;
  const int last = min(vocab, first + run);
  std::uint64_t own_ties = 0;
  for (int id = first; id < last; ++id) own_ties += least != 0 && draw_key(logits[id]) == least ? 1 : 0;
  const std::uint64_t ties_before = block_before(own_ties, shared);
  const auto kept = [&](int id, std::uint64_t& seen) -> std::uint64_t {
    const std::uint32_t key = draw_key(logits[id]);
    if (key == 0 || key < least) return 0;
    if (key == least && least != 0 && seen++ >= ties) return 0;
    const float value = weight(id);
    if (row.min_p > 0 && value < row.min_p) return 0;
    return static_cast<std::uint64_t>(static_cast<double>(value) * 0x1p40);
  };
  std::uint64_t own = 0;
  std::uint64_t seen = ties_before;
  for (int id = first; id < last; ++id) own += kept(id, seen);
  const std::uint64_t before = block_before(own, shared);
  const std::uint64_t total = shared.total;
  const double draw = uniform_draw(row.seed, row.sample, row.position);
  if (total == 0) {  // min-p above one
    if (thread == 0) ids[blockIdx.x] = best_id;
    return;
  }
  auto target = static_cast<std::uint64_t>(draw * static_cast<double>(total));
  if (target >= total) target = total - 1;
  if (before <= target && target < before + own) {
    std::uint64_t sum = before;
    seen = ties_before;
    for (int id = first; id < last; ++id) {
      sum += kept(id, seen);
      if (sum > target) {
        ids[blockIdx.x] = id;
        return;
      }
    }
  }
}

}  // namespace

cudaError_t launch_sample(float* logits, std::int64_t stride, int vocab, const SampleRow* rows, int count,
                          std::uint32_t* counts, std::int32_t* ids, std::uint8_t* finite, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (sample_takes_sm90(vocab)) {
    return launch_sample_sm90(logits, stride, vocab, rows, count, counts, ids, finite, stream);
  }
  return launch(sample_row_sm80, static_cast<unsigned>(count), sample_threads, 0, stream, logits, stride, vocab, rows,
                counts, ids, finite);
}

}  // namespace m3::ops::cuda
