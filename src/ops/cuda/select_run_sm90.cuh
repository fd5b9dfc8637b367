// What the kernels of select_blocks for few tokens share (select_decode_sm90.cuh says how they go): who has which key blocks,
// the warp that copies them, a block's scores. Device code.
#pragma once

#include "src/ops/cuda/attention.cuh"
#include "src/ops/cuda/select_prefill_sm90.cuh"

namespace m3::ops::cuda {

inline constexpr int most_decode_sequences = 511;

struct DecodeCall {
  int blocks;            // of a row of scores
  int most_notes;        // of a row
  std::uint32_t* notes;  // [rows, most_notes]
  unsigned* counters;    // [sequences], zero between calls
};

// What the block wrote before (behind a barrier of its threads) is seen by whoever adds later, and the other way round.
__device__ inline unsigned add_in_order(unsigned* counter, unsigned value) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// One row's ids where nothing had to be scored: none, or all.
__device__ __forceinline__ void write_unscored_row(const SelectArgs& args, int token, int head, int lane) {
  std::int32_t* ids = args.block_ids + (std::int64_t{token} * args.heads + head) * args.topk;
  const int sequence = live_sequence(args.batch, token);
  const Choice choice(args, sequence >= 0 ? args.batch.positions[token] : 0);
  const bool live = sequence >= 0 && index_page(args.batch, sequence, choice.blocks - 1) >= 0;
  const int count = live ? min(choice.candidates(args.init_blocks), choice.slots) : 0;
  for (int i = lane; i < args.topk; i += warp_size) {
    ids[i] = !live                                          ? -1
             : i < choice.leading                           ? i
             : i < choice.leading + count                   ? args.init_blocks + i - choice.leading
             : i < choice.leading + count + choice.trailing ? choice.local_begin + i - choice.leading - count
                                                            : -1;
  }
}

// `Sets` of eight warps, 16 keys of a block each; a set takes every Sets-th block.
// Behind those workers, `Others` more warps.
template <bool Fp8, int Sets, int Stages, int Others>
struct DecodeShape {
  static_assert(Stages % Sets == 0);  // a stage's every round is one set's: who waits has seen the round before
  static constexpr int warps = 8 * Sets;
  static constexpr int threads = (warps + Others) * warp_size;
  static constexpr int stage_bytes = page_tokens * head_dim * (Fp8 ? 1 : 2);
  static constexpr int shared_bytes = Stages * stage_bytes;
};

// A sequence's tokens of this step, where the last of them stands (-1: it gets no blocks), and its key blocks to score.
struct SequenceWork {
  int first, end, position, units;
  // Positions and page tables stand since before the pass. Where all decode, token s is sequence s's.
  __device__ __forceinline__ SequenceWork(const SelectArgs& args, int s) {
    first = args.batch.query_begin[s];
    int last = min(s, args.batch.tokens - 1);
    position = args.batch.positions[last];
    int owner = args.batch.sequence_of_token[last];
    const int context = args.batch.context_lengths[s];
    end = args.batch.query_begin[s + 1];
    if (end - 1 != last && end > first) {
      last = end - 1;
      position = args.batch.positions[last];
      owner = args.batch.sequence_of_token[last];
    }
    units = 0;
    if (end <= first || owner != s || position < 0 || position >= context) {
      position = -1;
      return;
    }
    const Choice choice(args, position);
    units = choice.candidates(args.init_blocks);
    if (units <= choice.slots) units = 0;
  }
};

// unit_begin[s + 1] has the units of sequence s: where they begin instead. All threads; behind a barrier and with one.
__device__ __forceinline__ void sum_units(int* unit_begin, int sequences, int warp, int lane) {
  if (sequences <= 1) return;
  if (warp == 0) {
    int sum = 0;
    for (int base = 0; base < sequences; base += warp_size) {
      int value = base + lane < sequences ? unit_begin[base + lane + 1] : 0;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(all_lanes, value, offset);
        if (lane >= offset) value += other;
      }
      if (base + lane < sequences) unit_begin[base + lane + 1] = sum + value;
      sum += __shfl_sync(all_lanes, value, 31);
    }
  }
  __syncthreads();
}

// One warp: units `unit` … `last_unit` - 1 into the ring; `absent`: of a stage, that its page is not there.
template <bool Fp8, class Shape, int Stages>
__device__ __forceinline__ void copy_run(const SelectArgs& args, std::byte* ring, std::uint64_t (&full)[Stages],
                                         std::uint64_t (&empty)[Stages], int (&absent)[Stages], const int* unit_begin,
                                         int unit, int last_unit, int sequence, int lane) {
  int stage = 0;
  unsigned phase = 1;
  bool waited = false;
  while (unit < last_unit) {
    const int begin = unit_begin[sequence];
    const int count = min(unit_begin[sequence + 1], last_unit) - unit;
    const int block = args.init_blocks + unit - begin;
    const int written = args.batch.positions[args.batch.query_begin[sequence]] / page_tokens;  // before this step
    int pages = -1;
    for (int i = 0; i < count; ++i) {
      if (i % warp_size == 0) {
        pages = i + lane < count ? index_page(args.batch, sequence, block + i + lane) : -1;
      }
      const int page = __shfl_sync(all_lanes, pages, i % warp_size);
      if (!waited && block + i >= written) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        waited = true;
      }
      barrier_wait(&empty[stage], phase);
      if (lane == 0) {
        absent[stage] = page < 0 ? 1 : 0;
        if (page < 0) {
          barrier_arrive(&full[stage]);
        } else {
          barrier_expect(&full[stage], Shape::stage_bytes);
          copy_bulk_once(ring + stage * Shape::stage_bytes,
                         page_run(args.index_k, page, 0, CacheRow<Fp8>::element_bytes), Shape::stage_bytes,
                         &full[stage]);
        }
      }
      if (++stage == Stages) stage = 0, phase ^= 1;
    }
    unit += count;
    ++sequence;
    while (unit < last_unit && unit_begin[sequence + 1] == unit) ++sequence;
  }
}

// Sequences of no work, and rows that belong to none. begin_of(s): the first token of sequence s, also of the one past the
// last.
template <class BeginOf>
__device__ __forceinline__ void write_unscored(const SelectArgs& args, const int* unit_begin, const BeginOf& begin_of,
                                               int warp, int warps, int lane) {
  const int sequences = args.batch.sequences, heads = args.heads;
  const int me = static_cast<int>(blockIdx.x), groups = static_cast<int>(gridDim.x);
  for (int s = me; s < sequences; s += groups) {
    if (unit_begin[s + 1] != unit_begin[s]) continue;
    const int first = begin_of(s) * heads, end = begin_of(s + 1) * heads;
    for (int row = first + warp; row < end; row += warps) write_unscored_row(args, row / heads, row % heads, lane);
  }
  if (me == groups - 1) {
    for (int row = begin_of(sequences) * heads + warp; row < args.batch.tokens * heads; row += warps) {
      write_unscored_row(args, row / heads, row % heads, lane);
    }
  }
}

// Of 16 keys and a warp's two columns, the products in halves: the highest score of each column, to where the highest of
// the block stands. best(column): that, of columns 0 … 7.
template <class Best>
__device__ __forceinline__ void offer_scores(const float (&s)[2][4], bool gone, int lane, const Best& best) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float high = fmaxf(fmaxf(s[0][c] + s[1][c], s[0][c + 2] + s[1][c + 2]), no_score);
    for (int offset = 4; offset < 32; offset *= 2) {
      high = fmaxf(high, __shfl_xor_sync(all_lanes, high, offset));
    }
    if (lane / 4 == 0) atomicMax(&best(2 * (lane % 4) + c), score_key(gone ? no_score : high));
  }
}

// Queries as keys are stored.
template <bool Fp8>
__device__ __forceinline__ std::uint32_t as_stored(std::uint32_t pair) {
  if constexpr (!Fp8) return pair;
  return pack_bf16(widen_e4m3(narrow_e4m3(low_bf16(pair))), widen_e4m3(narrow_e4m3(high_bf16(pair))));
}

}  // namespace m3::ops::cuda
