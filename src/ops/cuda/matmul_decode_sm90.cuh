// Products with few rows of x on Hopper, at the rate that weights can be read: one block a multiprocessor, whose warps
// each stream rows of W of their own through a ring in shared memory, from first to last without waiting for each other.
//
// A warp's tile is up to 16 rows of W (8 of gate and the same 8 of up where results are stored activated) over all of K,
// against up to 8 items. Rows of a tile are copied apart, so that a block's share of the rows need not be a multiple of
// anything: every block reads the same number of bytes, but for a row. The sums are matmul.h's: eight segments of K.
#pragma once

#include "src/ops/cuda/matmul_decode_sm90.h"
#include "src/ops/cuda/matmul_sm80.cuh"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

// Steps of 64 columns a stage of the ring holds, and how rows get there: bulk copies, a row each, or pieces of 16 bytes.
template <WeightFormat Format_, int Warps, int Steps, bool Bulk, int Probe = 0>
struct DecodeShape {
  static constexpr WeightFormat format = Format_;
  static constexpr int warps = Warps;
  static constexpr int steps = Steps;
  static constexpr bool bulk = Bulk;
  static constexpr int probe = Probe;
  static constexpr bool scaled = Codec<Format_>::scaled;
  static constexpr int step_size = step_bytes(Format_);
  static constexpr int row_bytes = steps * step_size;
  static_assert(row_bytes % 128 == 0);
  // Between rows in shared memory: the lanes of a quarter of a warp (of half a warp, at 8 bytes a lane) meet all banks.
  static constexpr int pitch = row_bytes + (step_size == 128 ? 16 : step_size == 64 ? 64 : 32);
  static constexpr int scale_unit = Format_ == WeightFormat::nvfp4 ? 4 : scaled ? 2 : 0;  // a row and step
  static constexpr int scale_bytes = steps * scale_unit;                                  // a row
  static constexpr int scale_pitch = scale_bytes == 32 ? 48 : scale_bytes;
  static constexpr int stage_bytes = 16 * (pitch + scale_pitch);
  static constexpr unsigned arrivals = bulk ? (scaled ? 33 : 1) : 32;  // of a stage's barrier
};

inline constexpr int decode_shared = 216 << 10;  // dynamic shared memory: rows of x, then the rings
inline constexpr int decode_most_stages = 16;

// What a block does for one group of weights and up to eight of its items: `rows` rows (pairs of rows) from `row` on.
struct DecodePhase {
  const std::byte* values[2];
  const std::byte* scales[2];
  int group, first, count;  // items
  int row, rows;
  int tile, tiles;  // the first among the block's
  int slot, batch;  // the first row in shared memory of its x, which are there for one batch of phases at a time
};

struct DecodePlan {
  DecodePhase phases[decode_most_phases];
  int items[decode_most_items];
  short group_of_item[decode_most_items];
  unsigned active[32];
  int count, batches, x_rows;
  __device__ int tiles() const { return count > 0 ? phases[count - 1].tile + phases[count - 1].tiles : 0; }
};

// --- widening: codec.cuh's numbers in fewer instructions; `prepare` is met by DecodeCodec::arrange -------------------

// `Natural`: columns meet x in order, as it lies in memory; else x goes through `arrange` first.
template <WeightFormat Format, bool Natural>
struct DecodeCodec {
  static_assert(!Natural || step_bytes(Format) > 32);
  // What the sum lacks: a power of two.
  static constexpr float missing = Format == WeightFormat::nvfp4 ? 256.0f : 1.0f;

  // Eight e2m1 codes as four pairs (i, i + 4) of bf16 times 2^-126. A code times 2^12 + 2^6 has its sign and its magnitude
  // in their places.
  __device__ static void spread_e2m1(std::uint32_t codes, std::uint32_t* pairs) {
    constexpr std::uint32_t wanted = 0x81c081c0u;
    const std::uint32_t upper = codes >> 8;
    pairs[0] = ((codes & 0x000f000fu) * 0x1040u) & wanted;
    pairs[1] = ((codes & 0x00f000f0u) * 0x0104u) & wanted;
    pairs[2] = ((upper & 0x000f000fu) * 0x1040u) & wanted;
    pairs[3] = ((upper & 0x00f000f0u) * 0x0104u) & wanted;
  }
  // Four e4m3 codes as pairs (0, 2) and (1, 3) of bf16 times 2^-120, or (0, 1) and (2, 3).
  __device__ static void spread_e4m3(std::uint32_t codes, std::uint32_t* pairs) {
    if constexpr (Natural) return cuda::spread_e4m3(codes, pairs[0], pairs[1]);
    pairs[0] = ((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u);
    pairs[1] = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
  }

  struct Factor {
    std::uint32_t first, rest;  // `rest` where `two`
  };
  // From a scale's byte: what the spread codes lack.
  __device__ static Factor factor(std::uint32_t code) {
    if constexpr (Format == WeightFormat::mxfp4 || Format == WeightFormat::mxfp8) {
      return {(code + (Format == WeightFormat::mxfp4 ? 126 : 120)) * 0x00800080u, 0x3f803f80u};
    } else if constexpr (Format == WeightFormat::nvfp4) {
      // e4m3 times 2^-120 in both halves, then times 2^238.
      const std::uint32_t both = (((code << 8) & 0x8000u) | ((code << 4) & 0x07f0u)) * 0x00010001u;
      return {multiply_bf16(multiply_bf16(both, 0x7b007b00u), 0x7b007b00u), 0x3f803f80u};
    } else {
      return {0x7b807b80u, 0x3f803f80u};
    }
  }
  static constexpr std::uint32_t highest_code = Format == WeightFormat::mxfp4   ? 128
                                                : Format == WeightFormat::mxfp8 ? 134
                                                                                : 126;
  __device__ static bool rare(std::uint32_t code) {
    if constexpr (Format == WeightFormat::nvfp4) return (code & 0x7fu) > highest_code;
    return code > highest_code;
  }
  // Where the factor is not finite, or not a number.
  __device__ static void rare_factor(std::uint32_t code, Factor& factor) {
    if (!rare(code)) return;
    if (Format == WeightFormat::nvfp4 || code == 255) {
      factor.first = 0x7fc07fc0u;
    } else {
      const std::uint32_t exponent = code + (Format == WeightFormat::mxfp4 ? 126 : 120);
      factor.first = 254 * 0x00800080u;
      factor.rest = (exponent - 254 + 127) * 0x00800080u;
    }
  }

  __device__ static uint4 arrange(const uint4& v) {
    if constexpr (Format == WeightFormat::mxfp4 || Format == WeightFormat::nvfp4) {
      return {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
              __byte_perm(v.y, v.w, 0x7632)};
    } else if constexpr (Format == WeightFormat::fp8 || Format == WeightFormat::mxfp8) {
      return {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x5410),
              __byte_perm(v.z, v.w, 0x7632)};
    } else {
      return v;
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void copy_async_4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void copy_async_8(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void wait_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_grid_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

// The block's share of the rows: of all groups that items chose, in order. All threads; the plan is whole behind a barrier.
template <bool Activated>
__device__ inline void plan_block(const MatmulArgs& args, DecodePlan& plan, int x_capacity, int round_to) {
  constexpr int tile_rows = Activated ? 8 : 16;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const auto tiles_for = [&](int rows) {
    const int tiles = (rows + tile_rows - 1) / tile_rows;
    return (tiles + round_to - 1) / round_to * round_to;
  };
  if (args.groups == 0) {
    if (thread != 0) return;
    std::int64_t rows = args.inline_parts[0].rows;
    if constexpr (!Activated) {
      for (int part = 1; part < args.parts; ++part) rows += args.inline_parts[part].rows;
    }
    const auto begin = static_cast<int>(rows * blockIdx.x / gridDim.x);
    const auto end = static_cast<int>(rows * (blockIdx.x + 1) / gridDim.x);
    DecodePhase& phase = plan.phases[0];
    for (int part = 0; part < 2; ++part) {
      phase.values[part] = args.inline_parts[part].values;
      phase.scales[part] = args.inline_parts[part].scales;
    }
    phase.group = 0, phase.first = 0, phase.count = args.items;
    phase.row = begin, phase.rows = end - begin;
    phase.tile = 0, phase.tiles = tiles_for(phase.rows);
    phase.slot = 0, phase.batch = 0;
    plan.count = phase.rows > 0 ? 1 : 0;
    plan.batches = 1;
    plan.x_rows = args.items;
    return;
  }
  const int words = (args.groups + 31) / 32;
  for (int w = thread; w < 32; w += static_cast<int>(blockDim.x)) plan.active[w] = 0;
  __syncthreads();
  for (int item = thread; item < args.items; item += static_cast<int>(blockDim.x)) {
    const int place = args.expert_ids[item] - args.first_expert;
    int group = -1;
    if (place >= 0 && place < args.expert_count) {
      group = args.group_of_expert != nullptr ? args.group_of_expert[place] : place;
    }
    plan.group_of_item[item] = static_cast<short>(group);
    if (group >= 0) atomicOr(&plan.active[group / 32], 1u << group % 32);
  }
  __syncthreads();
  if (thread >= warp_size) return;
  const unsigned mine = lane < words ? plan.active[lane] : 0;
  int through = __popc(mine);
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(all_lanes, through, offset);
    if (lane >= offset) through += other;
  }
  const int groups = __shfl_sync(all_lanes, through, 31);
  const int before = through - __popc(mine);
  const std::int64_t rows = args.inline_parts[0].rows;
  const std::int64_t begin = rows * groups * blockIdx.x / gridDim.x;
  const std::int64_t end = rows * groups * (blockIdx.x + 1) / gridDim.x;
  int count = 0, items = 0, tile = 0, slot = 0, batch = 0, x_rows = 0;
  for (std::int64_t at = begin; at < end;) {
    const auto rank = static_cast<int>(at / rows);
    const std::int64_t stop = min(end, (rank + 1) * rows);
    // The rank'th group that has items.
    int group = -1;
    if (rank >= before && rank < through) {
      unsigned bits = mine;
      for (int i = before; i < rank; ++i) bits &= bits - 1;
      group = lane * 32 + __ffs(static_cast<int>(bits)) - 1;
    }
    group = __reduce_max_sync(all_lanes, group);
    const int first = items;
    for (int base = 0; base < args.items; base += warp_size) {
      const bool own = base + lane < args.items && plan.group_of_item[base + lane] == group;
      const unsigned votes = __ballot_sync(all_lanes, own);
      if (own) plan.items[items + __popc(votes & ((1u << lane) - 1))] = base + lane;
      items += __popc(votes);
    }
    const int most = min(8, x_capacity);
    for (int i = first; i < items; i += most) {
      const int n = min(most, items - i);
      if (slot + n > x_capacity) slot = 0, ++batch;
      if (lane == 0) {
        DecodePhase& phase = plan.phases[count];
        for (int part = 0; part < (Activated ? 2 : 1); ++part) {
          const WeightPart& weight = args.table[group * args.parts + part];
          phase.values[part] = weight.values;
          phase.scales[part] = weight.scales;
        }
        phase.group = group, phase.first = i, phase.count = n;
        phase.row = static_cast<int>(at - rank * rows), phase.rows = static_cast<int>(stop - at);
        phase.tile = tile, phase.tiles = tiles_for(phase.rows);
        phase.slot = slot, phase.batch = batch;
      }
      tile += tiles_for(static_cast<int>(stop - at));
      slot += n;
      x_rows = max(x_rows, slot);
      ++count;
    }
    at = stop;
  }
  if (lane == 0) {
    plan.count = count;
    plan.batches = batch + 1;
    plan.x_rows = x_rows;
  }
}

// The rows of one tile.
struct DecodeTile {
  int row, rows;
};
__device__ inline DecodeTile tile_of(const DecodePhase& phase, int tile) {
  const int at = tile - phase.tile;
  const int begin = phase.rows * at / phase.tiles;
  return {phase.row + begin, phase.rows * (at + 1) / phase.tiles - begin};
}

// Which of concatenated weights has this row; the row becomes that one's.
__device__ inline int part_at(const MatmulArgs& args, int& row) {
  int part = 0;
  for (; part + 1 < args.parts && row >= args.inline_parts[part].rows; ++part) row -= args.inline_parts[part].rows;
  return part;
}

// One warp's rows of W on their way through its ring.
template <class Shape, bool Activated>
struct RowStream {
  const MatmulArgs& args;
  const DecodePlan& plan;
  std::byte* ring;
  std::uint64_t* barriers;  // one a stage
  int stages, tiles, chunks;
  std::int64_t row_bytes, scale_bytes;
  int lane;
  int tile, phase = 0, chunk = 0, slot = 0, rows = 0;
  const std::byte* values = nullptr;  // of row lane % 16
  const std::byte* scales = nullptr;
  bool valid = false;

  __device__ RowStream(const MatmulArgs& args_, const DecodePlan& plan_, int warp, int lane_, std::byte* rings,
                       std::uint64_t* barriers_, int stages_)
      : args(args_),
        plan(plan_),
        ring(rings + warp * stages_ * Shape::stage_bytes),
        barriers(barriers_),
        stages(stages_),
        tiles(plan_.tiles()),
        chunks(args_.columns / (step_columns * Shape::steps)),
        row_bytes(std::int64_t{args_.columns / step_columns} * Shape::step_size),
        scale_bytes(args_.columns / step_columns * Shape::scale_unit),
        lane(lane_),
        tile(warp) {
    begin_tile();
    for (int i = 0; i < stages; ++i) copy_stage();
  }

  __device__ void begin_tile() {
    if (tile >= tiles) return;
    while (tile >= plan.phases[phase].tile + plan.phases[phase].tiles) ++phase;
    const DecodePhase& of = plan.phases[phase];
    const DecodeTile place = tile_of(of, tile);
    const int r = Activated ? lane % 8 : lane % 16;
    valid = r < place.rows;
    rows = Activated ? 2 * place.rows : place.rows;
    int row = place.row + (valid ? r : 0);
    const int part = Activated ? lane % 16 / 8 : 0;
    const std::byte* base = of.values[part];
    const std::byte* scale_base = of.scales[part];
    if (!Activated && args.groups == 0) {
      const int at = part_at(args, row);
      base = args.inline_parts[at].values;
      scale_base = args.inline_parts[at].scales;
    }
    values = base + row * row_bytes;
    scales = scale_base + row * scale_bytes;
  }

  // Queues the copies of the next stage, whose place has been read; nothing where no tile is left.
  __device__ void copy_stage() {
    if (tile >= tiles) return;
    std::byte* const stage = ring + slot * Shape::stage_bytes;
    std::uint64_t* const barrier = barriers + slot;
    if constexpr (Shape::bulk) {
      if (lane == 0) barrier_expect(barrier, static_cast<unsigned>(rows * Shape::row_bytes));
      __syncwarp();
      if (valid && lane < 16) copy_bulk(stage + lane * Shape::pitch, values, Shape::row_bytes, barrier);
    } else {
      constexpr int pieces = Shape::row_bytes / 16;  // of a row
      constexpr int at_once = pieces < warp_size ? warp_size / pieces : 1;
      constexpr int rounds = pieces < warp_size ? 1 : pieces / warp_size;
#pragma unroll
      for (int i = 0; i < 16; i += at_once) {
        const int row = i + (pieces < warp_size ? lane / pieces : 0);
        const auto from = __shfl_sync(all_lanes, reinterpret_cast<std::uint64_t>(values), row);
        const bool there = __shfl_sync(all_lanes, valid ? 1 : 0, row) != 0;
        if (there) {
#pragma unroll
          for (int k = 0; k < rounds; ++k) {
            const int piece = (pieces < warp_size ? lane % pieces : lane) + k * warp_size;
            copy_async_16(stage + row * Shape::pitch + piece * 16,
                          reinterpret_cast<const std::byte*>(from) + piece * 16);
          }
        }
      }
    }
    values += Shape::row_bytes;
    if constexpr (Shape::scaled) {
      std::byte* const to = stage + 16 * Shape::pitch + lane % 16 * Shape::scale_pitch;
      if (valid && lane < 16) {
        if constexpr (Shape::scale_bytes >= 16) {
#pragma unroll
          for (int i = 0; i < Shape::scale_bytes; i += 16) copy_async_16(to + i, scales + i);
        } else if constexpr (Shape::scale_bytes == 8) {
          copy_async_8(to, scales);
        } else {
          copy_async_4(to, scales);
        }
      }
      scales += Shape::scale_bytes;
    }
    if constexpr (!Shape::bulk || Shape::scaled) barrier_arrive_after_copies(barrier);
    if (++slot == stages) slot = 0;
    if (++chunk == chunks) {
      chunk = 0;
      tile += Shape::warps;
      begin_tile();
    }
  }
};

// A step of a stage as tensor-core operands: rows g and g + 8 of the tile, lane 4g + j's 16 columns.
template <class Shape, bool Natural>
__device__ inline void load_step(const std::byte* stage, int step, int g, int j, std::uint32_t (&pairs)[2][8]) {
  using Codec_ = Codec<Shape::format>;
  using Widen = DecodeCodec<Shape::format, Natural>;
  constexpr int words = Codec_::words;
  std::uint32_t raw[2][words];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::byte* from = stage + (g + 8 * r) * Shape::pitch + step * Shape::step_size + j * Codec_::lane_bytes;
    if constexpr (words == 2) {
      *reinterpret_cast<uint2*>(raw[r]) = *reinterpret_cast<const uint2*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < words; i += 4) {
        *reinterpret_cast<uint4*>(raw[r] + i) = *reinterpret_cast<const uint4*>(from + i * 4);
      }
    }
  }
  if constexpr (Shape::format == WeightFormat::bf16) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 8; ++i) pairs[r][i] = raw[r][i];
    }
  } else {
    std::uint32_t codes[2] = {};
    typename Widen::Factor factors[2];
    bool rare = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (Shape::scaled) {
        const std::byte* of_scales = stage + 16 * Shape::pitch + (g + 8 * r) * Shape::scale_pitch +
                                     step * Shape::scale_unit + (Shape::scale_unit == 4 ? j : j / 2);
        codes[r] = *reinterpret_cast<const std::uint8_t*>(of_scales);
        rare = rare || Widen::rare(codes[r]);
      }
      factors[r] = Widen::factor(codes[r]);
#pragma unroll
      for (int i = 0; i < words; ++i) {
        if constexpr (words == 2) {
          Widen::spread_e2m1(raw[r][i], pairs[r] + 4 * i);
        } else {
          Widen::spread_e4m3(raw[r][i], pairs[r] + 2 * i);
        }
      }
    }
    if constexpr (Shape::scaled) {
      if (rare) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          Widen::rare_factor(codes[r], factors[r]);
#pragma unroll
          for (int i = 0; i < 8; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], factors[r].first);
          factors[r].first = factors[r].rest;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 8; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], factors[r].first);
    }
  }
}

// A lane's four sums of a tile: items 2j and 2j + 1 of `first` on, rows g and g + 8.
template <bool Activated>
__device__ inline void store_sums(const MatmulArgs& args, const DecodePlan& plan, const DecodePhase& phase,
                                  const DecodeTile& tile, int first, int g, int j, const float (&sums)[4]) {
  const bool experts = args.groups > 0;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int item = first + 2 * j + c;
    if (item >= phase.count) continue;
    const int at = experts ? plan.items[phase.first + item] : phase.first + item;
    const int from = experts ? at / args.list_divisor : x_row(args, at);
    const int to = experts ? at : result_row(args, at);
    const WeightPart* of_group = experts ? args.table + phase.group * args.parts : args.inline_parts;
    if constexpr (Activated) {
      if (g >= tile.rows) continue;
      const int row = tile.row + g;
      const float gate = round_bf16(sums[c] * factor_of(args, of_group[0], from, row));
      const float up = round_bf16(sums[2 + c] * factor_of(args, of_group[1], from, row));
      static_cast<std::uint16_t*>(args.out)[to * args.out_stride + row] =
          narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (g + 8 * r >= tile.rows) continue;
        int row = tile.row + g + 8 * r;
        const int part = experts ? 0 : part_at(args, row);
        store_result(args, of_group[part], from, to, row, sums[2 * r + c]);
      }
    }
  }
}

#endif

// `x_capacity`: rows of x that shared memory may hold. `round_to`: a phase's tiles become a multiple of it.
template <class Shape, bool Activated>
__global__ void __launch_bounds__(Shape::warps* warp_size, 1)
    matmul_decode_sm90(const __grid_constant__ MatmulArgs args, int x_capacity, int round_to) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Widen = DecodeCodec<Shape::format, false>;
  constexpr int threads = Shape::warps * warp_size;
  __shared__ DecodePlan plan;
  __shared__ __align__(8) std::uint64_t arrived[Shape::warps][decode_most_stages];
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int steps = args.columns / step_columns;
  const int segment = (steps + k_segments - 1) / k_segments;
  const int x_pitch = args.columns * 2 + 16;
  const bool experts = args.groups > 0;

  for (int i = thread; i < Shape::warps * decode_most_stages; i += threads) {
    barrier_init(&arrived[0][0] + i, Shape::arrivals);
  }
  fence_barrier_init();
  const bool plan_waits = experts && !args.old_routing;
  bool waited = plan_waits || !args.old_x;  // before the first result
  if (plan_waits) wait_grid();
  plan_block<Activated>(args, plan, x_capacity, round_to);
  __syncthreads();

  const int x_bytes = (plan.x_rows * x_pitch + 127) / 128 * 128;
  const int stages = min(decode_most_stages, (decode_shared - x_bytes) / (Shape::warps * Shape::stage_bytes));
  RowStream<Shape, Activated> stream(args, plan, warp, lane, shared + x_bytes, arrived[warp], stages);

  // Weights are on their way before the kernel ahead has ended.
  if (waited && !plan_waits) wait_grid();
  // What follows may take it that the kernel ahead of this one has ended.
  if (waited) let_next_grid_begin();

  int slot = 0;
  unsigned parity = 0;
  int phase_at = 0;
  int tile_at = warp;
  for (int batch = 0; batch < plan.batches; ++batch) {
    if (batch > 0) __syncthreads();  // the rows of x of the batch before are read
    int last_tile = 0;
    for (int p = 0; p < plan.count; ++p) {
      const DecodePhase& phase = plan.phases[p];
      if (phase.batch != batch) continue;
      last_tile = phase.tile + phase.tiles;
      const int pieces = args.columns / 8;  // of a row, 16 bytes each
#pragma unroll 4
      for (int i = thread; i < phase.count * pieces; i += threads) {
        const int row = i / pieces;
        const int piece = i - row * pieces;
        const int from = experts ? plan.items[phase.first + row] / args.list_divisor : x_row(args, phase.first + row);
        const uint4 v = *(reinterpret_cast<const uint4*>(args.x + from * args.x_stride) + piece);
        *reinterpret_cast<uint4*>(shared + (phase.slot + row) * x_pitch + piece * 16) = Widen::arrange(v);
      }
    }
    __syncthreads();
    for (; tile_at < last_tile; tile_at += Shape::warps) {
      while (tile_at >= plan.phases[phase_at].tile + plan.phases[phase_at].tiles) ++phase_at;
      const DecodePhase& phase = plan.phases[phase_at];
      const std::byte* x = shared + (phase.slot + min(g, phase.count - 1)) * x_pitch + j * 32;
      float acc[4] = {};
      float total[4] = {};
      int segment_left = segment;
      for (int chunk = 0; chunk < stream.chunks; ++chunk) {
        if (Shape::probe != 2) barrier_wait(stream.barriers + slot, parity);
        const std::byte* const stage = stream.ring + slot * Shape::stage_bytes;
        if (Shape::probe != 1) {
#pragma unroll
          for (int step = 0; step < Shape::steps; ++step) {
            const uint4 x0 = *reinterpret_cast<const uint4*>(x + step * 128);
            const uint4 x1 = *reinterpret_cast<const uint4*>(x + step * 128 + 16);
            const std::uint32_t of_x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
            std::uint32_t pairs[2][8];
            load_step<Shape, false>(stage, step, g, j, pairs);
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
              mma_bf16(acc, pairs[0][i], pairs[1][i], pairs[0][i + 1], pairs[1][i + 1], of_x[i], of_x[i + 1]);
            }
            if (--segment_left == 0) {
              segment_left = segment;
#pragma unroll
              for (int i = 0; i < 4; ++i) total[i] += acc[i], acc[i] = 0;
            }
          }
        }
        x += Shape::steps * 128;
        __syncwarp();  // the stage is read
        if (++slot == stages) slot = 0, parity ^= 1;
        if (Shape::probe != 2) stream.copy_stage();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] = (total[i] + acc[i]) * Widen::missing;
      if (!waited) {
        wait_grid();
        let_next_grid_begin();
        waited = true;
      }
      store_sums<Activated>(args, plan, phase, tile_of(phase, tile_at), 0, g, j, total);
    }
  }
  if (!waited) wait_grid();  // kernels end in their order
#endif
}

// For 9 to 8 · Tiles items of one list: x does not fit beside the rings, and streams past all warps at once, a stage as
// wide as W's; a warp of its own copies it.
inline constexpr int streamed_x_stages = 3;
template <class Shape, int Tiles>
__host__ __device__ constexpr int streamed_x_bytes() {
  return streamed_x_stages * 8 * Tiles * (Shape::steps * 128 + 16);
}

template <class Shape, int Tiles, bool Activated>
__global__ void __launch_bounds__((Shape::warps + 1) * warp_size, 1)
    matmul_decode_streamed_sm90(const __grid_constant__ MatmulArgs args, int round_to) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Widen = DecodeCodec<Shape::format, true>;
  constexpr int threads = (Shape::warps + 1) * warp_size;
  constexpr int x_pitch = Shape::steps * 128 + 16;
  constexpr int x_stage = 8 * Tiles * x_pitch;
  constexpr int x_bytes = streamed_x_bytes<Shape, Tiles>();
  constexpr int stages_that_fit = (decode_shared - x_bytes) / (Shape::warps * Shape::stage_bytes);
  constexpr int stages = stages_that_fit < decode_most_stages ? stages_that_fit : decode_most_stages;
  static_assert(stages >= 2);
  __shared__ DecodePlan plan;
  __shared__ __align__(8) std::uint64_t arrived[Shape::warps][decode_most_stages];
  __shared__ __align__(8) std::uint64_t x_arrived[streamed_x_stages], x_read[streamed_x_stages];
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int steps = args.columns / step_columns;
  const int segment = (steps + k_segments - 1) / k_segments;
  const int chunks = steps / Shape::steps;

  for (int i = thread; i < Shape::warps * decode_most_stages; i += threads) {
    barrier_init(&arrived[0][0] + i, Shape::arrivals);
  }
  if (thread < streamed_x_stages) barrier_init(x_arrived + thread, warp_size), barrier_init(x_read + thread, Shape::warps);
  fence_barrier_init();
  plan_block<Activated>(args, plan, 0, round_to);
  __syncthreads();
  const int tiles = plan.tiles();
  const int rounds = (tiles + Shape::warps - 1) / Shape::warps;  // every warp reads all of x as often

  if (warp == Shape::warps) {
    wait_grid();
    let_next_grid_begin();
    constexpr int pieces = Shape::steps * 8;  // of a row's stage, 16 bytes each
    static_assert(pieces <= warp_size);
    constexpr int at_once = warp_size / pieces;
    constexpr int copies = 8 * Tiles / at_once;
    const std::uint16_t* from[copies];
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const int item = min(i * at_once + lane / pieces, args.items - 1);
      from[i] = args.x + x_row(args, item) * args.x_stride + lane % pieces * 8;
    }
    int slot = 0;
    unsigned parity = 1;
    for (int round = 0; round < rounds; ++round) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        barrier_wait(x_read + slot, parity);
        std::byte* const stage = shared + slot * x_stage;
#pragma unroll
        for (int i = 0; i < copies; ++i) {
          copy_async_16(stage + (i * at_once + lane / pieces) * x_pitch + lane % pieces * 16,
                        from[i] + chunk * Shape::steps * step_columns);
        }
        barrier_arrive_after_copies(x_arrived + slot);
        if (++slot == streamed_x_stages) slot = 0, parity ^= 1;
      }
    }
    wait_copies<0>();
    return;
  }

  RowStream<Shape, Activated> stream(args, plan, warp, lane, shared + x_bytes, arrived[warp], stages);
  int slot = 0, x_slot = 0;
  unsigned parity = 0, x_parity = 0;
  bool waited = false;
  for (int round = 0; round < rounds; ++round) {
    const int tile_at = round * Shape::warps + warp;
    const bool mine = tile_at < tiles;
    float acc[Tiles][4] = {};
    float total[Tiles][4] = {};
    int segment_left = segment;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(x_arrived + x_slot, x_parity);
      if (mine) {
        barrier_wait(stream.barriers + slot, parity);
        const std::byte* const stage = stream.ring + slot * Shape::stage_bytes;
        const std::byte* const x = shared + x_slot * x_stage + g * x_pitch + j * 32;
#pragma unroll
        for (int step = 0; step < Shape::steps; ++step) {
          std::uint32_t pairs[2][8];
          load_step<Shape, true>(stage, step, g, j, pairs);
#pragma unroll
          for (int t = 0; t < Tiles; ++t) {
            const uint4 x0 = *reinterpret_cast<const uint4*>(x + t * 8 * x_pitch + step * 128);
            const uint4 x1 = *reinterpret_cast<const uint4*>(x + t * 8 * x_pitch + step * 128 + 16);
            const std::uint32_t of_x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
              mma_bf16(acc[t], pairs[0][i], pairs[1][i], pairs[0][i + 1], pairs[1][i + 1], of_x[i], of_x[i + 1]);
            }
          }
          if (--segment_left == 0) {
            segment_left = segment;
#pragma unroll
            for (int t = 0; t < Tiles; ++t) {
#pragma unroll
              for (int i = 0; i < 4; ++i) total[t][i] += acc[t][i], acc[t][i] = 0;
            }
          }
        }
      }
      __syncwarp();  // both stages are read
      if (lane == 0) barrier_arrive(x_read + x_slot);
      if (++x_slot == streamed_x_stages) x_slot = 0, x_parity ^= 1;
      if (mine) {
        if (++slot == stages) slot = 0, parity ^= 1;
        stream.copy_stage();
      }
    }
    if (!waited) wait_grid(), waited = true;  // results may be what the kernel ahead still reads
    if (!mine) continue;
    const DecodeTile tile = tile_of(plan.phases[0], tile_at);
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[t][i] = (total[t][i] + acc[t][i]) * Widen::missing;
      store_sums<Activated>(args, plan, plan.phases[0], tile, t * 8, g, j, total[t]);
    }
  }
#endif
}

// --- launching -------------------------------------------------------------------------------------------------------

template <class Shape, bool Activated>
cudaError_t launch_few(const MatmulArgs& args, int round_to, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_decode_sm90<Shape, Activated>;
  if (const cudaError_t error = allow_shared(kernel, decode_shared, allowed); error != cudaSuccess) return error;
  const int most = decode_x_bytes / (args.columns * 2 + 16);
  return launch(kernel, static_cast<unsigned>(multiprocessors()), Shape::warps * warp_size, decode_shared, stream, args,
                most > 16 ? 16 : most, round_to);
}

template <class Shape, int Tiles, bool Activated>
cudaError_t launch_streamed(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_decode_streamed_sm90<Shape, Tiles, Activated>;
  if (const cudaError_t error = allow_shared(kernel, decode_shared, allowed); error != cudaSuccess) return error;
  return launch(kernel, static_cast<unsigned>(multiprocessors()), (Shape::warps + 1) * warp_size, decode_shared, stream,
                args, Shape::warps);
}

// What the formats are read by.
template <WeightFormat Format>
struct DecodeChoice {
  static constexpr bool nibbles = step_bytes(Format) == 32;
  using Few = DecodeShape<Format, nibbles ? 12 : 8, nibbles ? 8 : Format == WeightFormat::bf16 ? 2 : 4, !nibbles>;
  static constexpr int few_round = nibbles ? 1 : Few::warps;
  using Some = DecodeShape<Format, 8, 2, true>;
};

template <WeightFormat Format, bool Activated>
cudaError_t matmul_decode_sm90_as(const MatmulArgs& args, cudaStream_t stream) {
  using Choice = DecodeChoice<Format>;
  if (args.groups > 0 || decode_x_fits(args)) {
    return launch_few<typename Choice::Few, Activated>(args, Choice::few_round, stream);
  }
  if constexpr (!Choice::nibbles) {
    using Some = typename Choice::Some;
    if (args.items <= 8) return launch_streamed<Some, 1, Activated>(args, stream);
    if (args.items <= 16) return launch_streamed<Some, 2, Activated>(args, stream);
    if (args.items <= 32) return launch_streamed<Some, 4, Activated>(args, stream);
    return launch_streamed<Some, 8, Activated>(args, stream);
  }
  return cudaErrorInvalidValue;
}

template <WeightFormat Format>
cudaError_t matmul_decode_sm90_of(const MatmulArgs& args, cudaStream_t stream) {
  return args.store == Store::activated ? matmul_decode_sm90_as<Format, true>(args, stream)
                                        : matmul_decode_sm90_as<Format, false>(args, stream);
}

}  // namespace m3::ops::cuda
