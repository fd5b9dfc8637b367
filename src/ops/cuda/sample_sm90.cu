// A row of `sample` by a cluster of eight blocks of threads on Hopper: each keeps its eighth of the logits in shared
// memory, so that they are read once, and sums are exchanged within the cluster. The arithmetic is sample.cu's: weights are
// integers, whose sums do not depend on their order.
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/sample_math.cuh"

namespace m3::ops::cuda {

namespace {

constexpr unsigned cluster_size = 8;
constexpr int threads = 512;
constexpr int warps = threads / warp_size;
constexpr int most_slice = 52 * 1024;  // logits that a block's shared memory holds
// Most logits share a few leading digits. A quarter of a warp's lanes add to each copy of the bins, and 32 bits at a time,
// which shared memory does by itself; for 64 it would try again and again (330 us for a row's top-k of 40 and top-p).
constexpr int bin_copies = 4;

int slice_of(int vocab) {
  return (vocab + static_cast<int>(cluster_size) * 4 - 1) / (static_cast<int>(cluster_size) * 4) * 4;
}

struct Shared {
  std::uint64_t warps_of_block[warps];
  std::uint64_t exchanged[2];  // sums of a block, for the others
  std::uint32_t low[256][bin_copies], high[256][bin_copies];
  std::uint64_t bins[256], all_bins[256];  // of the block and of the cluster
  std::uint64_t above;
  std::uint32_t digit;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// What stands at the same place in another block's shared memory.
__device__ std::uint64_t load_of_block(const std::uint64_t* own, unsigned rank) {
  std::uint32_t address = static_cast<std::uint32_t>(__cvta_generic_to_shared(own));
  std::uint64_t value;
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.u64 %0, [there];\n}"
               : "=l"(value)
               : "r"(address), "r"(rank)
               : "memory");
  return value;
}

struct Sums {
  std::uint64_t before, total;
};

class Row {
 public:
  __device__ Row(float* values, int first, int count, Shared& shared)
      : values_(values),
        first_(first),
        count_(count),
        shared_(shared),
        rank_(cluster_rank()),
        lane_(static_cast<int>(threadIdx.x) % warp_size),
        warp_(static_cast<int>(threadIdx.x) / warp_size) {}

  // The highest over all threads of the cluster.
  __device__ std::uint64_t highest(std::uint64_t value) {
    for (int offset = 16; offset > 0; offset /= 2) {
      const std::uint64_t other = __shfl_xor_sync(all_lanes, value, offset);
      value = other > value ? other : value;
    }
    __syncthreads();
    if (lane_ == 0) shared_.warps_of_block[warp_] = value;
    __syncthreads();
    for (int w = 0; w < warps; ++w) value = max(value, shared_.warps_of_block[w]);
    if (threadIdx.x == 0) shared_.exchanged[turn_] = value;
    cluster_barrier();
    for (unsigned r = 0; r < cluster_size; ++r) value = max(value, load_of_block(&shared_.exchanged[turn_], r));
    turn_ ^= 1;
    return value;
  }

  // What the warps before this one hold together, those of earlier blocks included, and what all do.
  __device__ Sums sums(std::uint64_t value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(all_lanes, value, offset);
    __syncthreads();
    if (lane_ == 0) shared_.warps_of_block[warp_] = value;
    __syncthreads();
    std::uint64_t before = 0, block = 0, total = 0;
    for (int w = 0; w < warps; ++w) {
      if (w < warp_) before += shared_.warps_of_block[w];
      block += shared_.warps_of_block[w];
    }
    if (threadIdx.x == 0) shared_.exchanged[turn_] = block;
    cluster_barrier();
    for (unsigned r = 0; r < cluster_size; ++r) {
      const std::uint64_t other = load_of_block(&shared_.exchanged[turn_], r);
      if (r < rank_) before += other;
      total += other;
    }
    turn_ ^= 1;
    return {before, total};
  }

  // sample.cu's find_key: the key at which the amounts of the ids, summed from the highest key down, first reach `wanted`,
  // and the sum over higher ones.
  template <typename Amount>
  __device__ std::uint32_t find_key(std::uint64_t wanted, std::uint64_t& above, const Amount& amount) {
    std::uint32_t prefix = 0;
    above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = static_cast<int>(threadIdx.x); i < 256 * bin_copies; i += threads) {
        shared_.low[0][i] = 0;
        shared_.high[0][i] = 0;
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < count_; i += threads) {
        const std::uint32_t key = draw_key(values_[i]);
        if (key == 0 || (shift < 24 && key >> (shift + 8) != prefix)) continue;
        add_to_bin(key >> shift & 255u, amount(i, key));
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads) {
        std::uint64_t sum = 0;
        for (int copy = 0; copy < bin_copies; ++copy) {
          sum += (std::uint64_t{shared_.high[i][copy]} << 32) + shared_.low[i][copy];
        }
        shared_.bins[i] = sum;
      }
      cluster_barrier();
      for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads) {
        std::uint64_t sum = 0;
        for (unsigned r = 0; r < cluster_size; ++r) sum += load_of_block(&shared_.bins[i], r);
        shared_.all_bins[i] = sum;
      }
      cluster_barrier();  // nobody clears bins that another still reads
      if (warp_ == 0) {
        // Lane l takes the eight bins from 255 - 8 l downwards.
        std::uint64_t own = 0;
        for (int i = 0; i < 8; ++i) own += shared_.all_bins[255 - lane_ * 8 - i];
        std::uint64_t higher = own;
        for (int offset = 1; offset < warp_size; offset *= 2) {
          const std::uint64_t other = __shfl_up_sync(all_lanes, higher, offset);
          if (lane_ >= offset) higher += other;
        }
        const unsigned reached = __ballot_sync(all_lanes, above + higher >= wanted);
        const int lane = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : warp_size - 1;
        if (lane_ == lane) {
          std::uint64_t sum = above + higher - own;
          int bin = 255 - lane_ * 8;
          while (bin > 0 && sum + shared_.all_bins[bin] < wanted) sum += shared_.all_bins[bin--];
          shared_.digit = static_cast<std::uint32_t>(bin);
          shared_.above = sum;
        }
      }
      __syncthreads();
      prefix = prefix << 8 | shared_.digit;
      above = shared_.above;
      __syncthreads();
    }
    return prefix;
  }

  float* values_;
  int first_, count_;

 private:
  __device__ void add_to_bin(std::uint32_t bin, std::uint32_t one) {
    atomicAdd(&shared_.low[bin][lane_ % bin_copies], one);
  }
  __device__ void add_to_bin(std::uint32_t bin, std::uint64_t amount) {
    if (amount == 0) return;
    const auto low = static_cast<std::uint32_t>(amount);
    const std::uint32_t before = atomicAdd(&shared_.low[bin][lane_ % bin_copies], low);
    const std::uint32_t high = static_cast<std::uint32_t>(amount >> 32) + (before + low < before ? 1u : 0u);
    if (high != 0) atomicAdd(&shared_.high[bin][lane_ % bin_copies], high);
  }

  Shared& shared_;
  unsigned rank_;
  int lane_, warp_;
  int turn_ = 0;
};

__device__ std::int32_t draw(const SampleRow& row, Row& slice, std::uint64_t best, int vocab, std::int32_t* drawn) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size, warp = thread / warp_size;
  float* const values = slice.values_;
  const int count = slice.count_;
  const auto best_id = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
  const auto best_key = static_cast<std::uint32_t>(best >> 32);
  const float maximum = __uint_as_float((best_key & 0x80000000u) != 0 ? best_key & 0x7fffffffu : ~best_key);
  const auto weight = [&](int i) { return expf((values[i] - maximum) / row.temperature); };
  const auto amount = [&](int i) { return static_cast<std::uint64_t>(static_cast<double>(weight(i)) * 0x1p40); };
  // What is kept: keys above `least`, and the first `ties` ids (in order) of that very key.
  std::uint32_t least = 0;
  std::uint64_t ties = 0;
  if (row.top_k > 0 && row.top_k < vocab) {
    std::uint64_t all = 0;
    for (int i = thread; i < count; i += threads) all += draw_key(values[i]) != 0 ? 1 : 0;
    const std::uint64_t drawable_ids = slice.sums(all).total;
    if (drawable_ids > static_cast<std::uint64_t>(row.top_k)) {
      std::uint64_t above = 0;
      least = slice.find_key(static_cast<std::uint64_t>(row.top_k), above, [](int, std::uint32_t) { return 1u; });
      ties = static_cast<std::uint64_t>(row.top_k) - above;
    }
  }
  if (row.top_p < 1) {
    // Over what top-k kept: its ties weigh the same, so only their number matters.
    const auto kept_amount = [&](int i, std::uint32_t key) -> std::uint64_t { return key > least ? amount(i) : 0; };
    std::uint64_t own = 0, tie_amount = 0;
    for (int i = thread; i < count; i += threads) {
      const std::uint32_t key = draw_key(values[i]);
      if (key != 0) own += kept_amount(i, key);
      if (least != 0 && key == least) tie_amount = amount(i);
    }
    const std::uint64_t above = slice.sums(own).total;
    tie_amount = slice.highest(tie_amount);
    const std::uint64_t total = above + ties * tie_amount;
    auto wanted = static_cast<std::uint64_t>(ceil(static_cast<double>(row.top_p) * static_cast<double>(total)));
    if (wanted < 1) wanted = 1;
    if (wanted > total) wanted = total;
    if (wanted <= above) {
      std::uint64_t higher = 0;
      least = slice.find_key(wanted, higher, kept_amount);
      const std::uint64_t missing = wanted - higher;
      std::uint64_t tie = 0;
      for (int i = thread; i < count; i += threads) {  // all ties weigh the same
        if (draw_key(values[i]) == least) tie = amount(i);
      }
      tie = slice.highest(tie);
      const std::uint64_t each = tie > 0 ? tie : 1;
      ties = (missing + each - 1) / each;
    } else if (tie_amount > 0) {
      ties = (wanted - above + tie_amount - 1) / tie_amount;
    }
  }

  // Candidates in order of id: each warp a run of ids, 32 at a time.
  const int run = (count + warps - 1) / warps;
  const int first = min(count, warp * run), last = min(count, first + run);
  const unsigned below = (1u << lane) - 1;
  std::uint64_t ties_before = 0;
  if (least != 0) {
    std::uint64_t own_ties = 0;
    for (int i = first + lane; i < last; i += warp_size) own_ties += draw_key(values[i]) == least ? 1 : 0;
    ties_before = slice.sums(own_ties).before;
  }
  const auto kept = [&](int i, std::uint64_t& seen) -> std::uint64_t {  // of lane's id; whole warps
    const std::uint32_t key = i < last ? draw_key(values[i]) : 0;
    const unsigned equal = __ballot_sync(all_lanes, key != 0 && key == least);
    const bool late = key == least && seen + static_cast<std::uint64_t>(__popc(equal & below)) >= ties;
    seen += static_cast<std::uint64_t>(__popc(equal));
    if (key == 0 || key < least || late) return 0;
    const float value = weight(i);
    if (row.min_p > 0 && value < row.min_p) return 0;
    return static_cast<std::uint64_t>(static_cast<double>(value) * 0x1p40);
  };
  std::uint64_t own = 0, seen = ties_before;
  for (int base = first; base < last; base += warp_size) own += kept(base + lane, seen);
  const Sums sums = slice.sums(own);
  for (int offset = 16; offset > 0; offset /= 2) own += __shfl_xor_sync(all_lanes, own, offset);
  if (sums.total == 0) return best_id;  // min-p above one
  auto target =
      static_cast<std::uint64_t>(uniform_draw(row.seed, row.sample, row.position) * static_cast<double>(sums.total));
  if (target >= sums.total) target = sums.total - 1;
  if (sums.before <= target && target < sums.before + own) {
    std::uint64_t sum = sums.before;
    seen = ties_before;
    for (int base = first; base < last; base += warp_size) {
      std::uint64_t up_to = kept(base + lane, seen);
      for (int offset = 1; offset < warp_size; offset *= 2) {
        const std::uint64_t other = __shfl_up_sync(all_lanes, up_to, offset);
        if (lane >= offset) up_to += other;
      }
      const unsigned over = __ballot_sync(all_lanes, sum + up_to > target);
      if (over != 0) {
        if (lane == 0) *drawn = slice.first_ + base + __ffs(static_cast<int>(over)) - 1;
        break;
      }
      sum += __shfl_sync(all_lanes, up_to, warp_size - 1);
    }
  }
  return -2;  // written already
}

#endif

__global__ void __launch_bounds__(threads, 2)
    sample_row_sm90(const float* all_logits, std::int64_t stride, int vocab, const SampleRow* rows,
                    std::uint32_t* all_counts, std::int32_t* ids, std::uint8_t* finite, int slice) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ Shared shared;
  wait_for_previous();
  auto* const values = reinterpret_cast<float*>(dynamic_shared());
  const int at = static_cast<int>(blockIdx.x / cluster_size);
  const unsigned rank = cluster_rank();
  const int first = min(vocab, static_cast<int>(rank) * slice), count = min(slice, vocab - first);
  const SampleRow row = rows[at];
  const float* from = all_logits + at * stride + first;
  std::uint32_t* counts = all_counts + std::int64_t{at} * vocab + first;
  const int thread = static_cast<int>(threadIdx.x);
  Row own(values, first, count, shared);

  bool all = true;
  if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const int chunks = count / 4;
#pragma unroll 8
    for (int i = thread; i < chunks; i += threads) {
      const float4 v = __ldcs(reinterpret_cast<const float4*>(from) + i);
      all = all && drawable(v.x) && drawable(v.y) && drawable(v.z) && drawable(v.w);
      reinterpret_cast<float4*>(values)[i] = v;
    }
    for (int i = chunks * 4 + thread; i < count; i += threads) {
      values[i] = from[i];
      all = all && drawable(values[i]);
    }
  } else {
#pragma unroll 8
    for (int i = thread; i < count; i += threads) {
      const float v = __ldcs(from + i);
      values[i] = v;
      all = all && drawable(v);
    }
  }
  const int broken = __syncthreads_or(all ? 0 : 1);

  shape_logits(row, values, counts, first, count, thread, threads);

  std::uint64_t best = 0;
  for (int i = thread; i < count; i += threads) {
    const std::uint32_t key = draw_key(values[i]);
    const std::uint64_t place = std::uint64_t{key} << 32 | (0xffffffffu - static_cast<std::uint32_t>(first + i));
    if (key != 0 && place > best) best = place;
  }
  best = own.highest(best);
  std::int32_t id = best == 0 ? -1 : static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
  if (best != 0 && row.temperature > 0) id = draw(row, own, best, vocab, &ids[at]);
  const std::uint64_t any_broken = finite != nullptr ? own.highest(static_cast<std::uint64_t>(broken)) : 0;
  if (rank == 0 && thread == 0) {
    if (id >= -1) ids[at] = id;
    if (finite != nullptr) finite[at] = any_broken == 0 ? 1 : 0;
  }
  cluster_barrier();  // what others still read of this block stays until they have
#endif
}

}  // namespace

bool sample_takes_sm90(int vocab) { return is_hopper() && slice_of(vocab) <= most_slice; }

cudaError_t launch_sample_sm90(const float* logits, std::int64_t stride, int vocab, const SampleRow* rows, int count,
                               std::uint32_t* counts, std::int32_t* ids, std::uint8_t* finite, cudaStream_t stream) {
  static int allowed = 48 * 1024 - static_cast<int>(sizeof(Shared));
  const int slice = slice_of(vocab);
  const cudaError_t error = allow_shared(sample_row_sm90, slice * 4, allowed);
  if (error != cudaSuccess) return error;
  const ClusterLaunch clusters(cluster_size, static_cast<unsigned>(count) * cluster_size, threads,
                               static_cast<std::size_t>(slice) * 4, stream);
  return cudaLaunchKernelEx(&clusters.config, sample_row_sm90, logits, stride, vocab, rows, counts, ids, finite, slice);
}

}  // namespace m3::ops::cuda
