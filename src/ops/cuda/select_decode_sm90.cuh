// select_blocks for few tokens a sequence on Hopper: one launch that reads the index keys once, by bulk copies into a ring
// of stages, as fast as the memory gives them.
//
// The work, all sequences' key blocks in a row, is dealt out evenly over the blocks of threads. As the own block is always
// chosen (local_blocks >= 1), every scored block lies wholly before the tokens; those that lie before the sequence's first
// token of this step were written in earlier ones, so that their copies begin ahead of the kernel before. Whoever adds the
// last of a sequence's scores chooses its blocks; a warp of each block of threads runs through that code beforehand, on
// whatever numbers, so that it is near (2 us of 7 where one token's 64 blocks are chosen from).
#pragma once

#include <algorithm>

#include "src/ops/cuda/select_choice_sm90.cuh"
#include "src/ops/cuda/select_run_sm90.cuh"

namespace m3::ops::cuda {

// Scores of a sequence are chosen from directly up to this many; above, by notes.
inline constexpr int most_direct = 1024;

// Where a token stands of a sequence that has one in this step; several_tokens: it has more; or it gets no blocks.
inline constexpr int no_blocks = -1, several_tokens = -2;

// 8 · ColumnTiles columns: the tokens of a sequence times heads. Behind the workers, a warp copies, and one fetches code.
template <bool Fp8, int Sets, int Stages, int ColumnTiles>
__global__ void __launch_bounds__(DecodeShape<Fp8, Sets, Stages, 2>::threads, 1)
    select_blocks_decode_sm90(const __grid_constant__ SelectArgs args, const __grid_constant__ DecodeCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Row = CacheRow<Fp8>;
  using Shape = DecodeShape<Fp8, Sets, Stages, 2>;
  constexpr int warps = Shape::warps;
  constexpr int workers = warps * warp_size;
  constexpr int columns = 8 * ColumnTiles;
  constexpr int sides = ColumnTiles == 1 ? 2 : 1;    // of queries: this sequence's and the next one's
  constexpr int held = ColumnTiles == 1 ? 128 : 32;  // key blocks whose scores are kept before they are written out
  std::byte* const ring = dynamic_shared();
  __shared__ std::uint64_t full[Stages], empty[Stages];
  __shared__ int absent[Stages];
  __shared__ int unit_begin[most_decode_sequences + 1];
  __shared__ int token_begin[most_decode_sequences + 1];
  __shared__ int own_position[most_decode_sequences];
  __shared__ std::uint32_t best[columns][held + 1];
  __shared__ ShortList lists[warps + 2];
  __shared__ int list_count[warps + 2];
  __shared__ int is_last[2];
  __shared__ __align__(16) std::uint16_t queries[sides * columns][head_dim + 8];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int sequences = args.batch.sequences;
  const int me = static_cast<int>(blockIdx.x), groups = static_cast<int>(gridDim.x);
  asm volatile("griddepcontrol.launch_dependents;");
  if (thread == 0) {
    for (int s = 0; s < Stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 8 * warp_size);
    }
    fence_barrier_init();
  }
  if (thread == 0) token_begin[sequences] = sequences > 0 ? args.batch.query_begin[sequences] : 0;
  for (int s = thread; s < sequences; s += Shape::threads) {
    const SequenceWork work(args, s);
    int own = no_blocks;
    if (work.position >= 0) {
      if (work.end - work.first > 1) {
        own = several_tokens;
      } else if (index_page(args.batch, s, Choice(args, work.position).blocks - 1) >= 0) {
        own = work.position;
      }
    }
    unit_begin[s + 1] = work.units;
    token_begin[s] = work.first;
    own_position[s] = own;
  }
  for (int i = thread; i < (held + 1) * columns; i += Shape::threads) (&best[0][0])[i] = 0;
  if (thread == 0) unit_begin[0] = 0;
  __syncthreads();
  sum_units(unit_begin, sequences, warp, lane);
  const int units = unit_begin[sequences];
  int unit = run_begin(units, me, groups);
  const int last_unit = run_begin(units, me + 1, groups);
  int sequence = unit < last_unit ? find_run(unit_begin, sequences, unit) : sequences;

  if (warp == warps) {
    copy_run<Fp8, Shape>(args, ring, full, empty, absent, unit_begin, unit, last_unit, sequence, lane);
    return;
  }

  const int heads = args.heads;
  const auto split_of = [](int rows) { return rows * 4 <= warps ? 4 : rows * 2 <= warps ? 2 : 1; };  // warps a row
  auto* const scores = reinterpret_cast<std::uint32_t*>(args.scores);
  // This warp runs through the choice as the last of the first sequence's blocks of threads will.
  const bool dry = warp > warps;
  if (dry && unit >= last_unit) return;
  if (!dry) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (!dry && (units == 0 || sequences > 1 || args.batch.tokens > 1)) {
    write_unscored(
        args, unit_begin, [&](int s) { return token_begin[s]; }, warp, warps, lane);
  }

  const int g = lane / 4;
  const int j = lane % 4;
  const int set = warp / 8;
  int next = 0;  // blocks seen so far
  const auto sync_workers = [] { sync_threads_of(1, workers); };
  const auto cast = [](std::uint32_t pair) { return as_stored<Fp8>(pair); };
  // Eight numbers of a sequence's queries, one row's: piece i of 16.
  const auto load_piece = [&](int of_sequence, int i) {
    const int first = token_begin[of_sequence], column = i / 16;
    if (column >= (token_begin[of_sequence + 1] - first) * heads) return uint4{0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(args.index_q + std::int64_t{first + column / heads} * args.stride +
                                           column % heads * head_dim + i % 16 * 8);
  };
  const auto store_piece = [&](int side, int i, const uint4& v) {
    *reinterpret_cast<uint4*>(&queries[side * columns + i / 16][i % 16 * 8]) = {cast(v.x), cast(v.y), cast(v.z),
                                                                                cast(v.w)};
  };
  // The one that unit `from` belongs to, if not this one.
  const auto next_from = [&](int of_sequence, int from) {
    while (from < last_unit && unit_begin[of_sequence + 1] <= from) ++of_sequence;
    return of_sequence;
  };
  constexpr int pieces = columns * 16;
  constexpr bool holds_queries = ColumnTiles == 1 && !Fp8;  // in registers; e4m3 has none left
  if (ColumnTiles == 1 && !dry) {
    const int side = thread / pieces;
    if (side < sides && unit < last_unit) {
      const int from = side == 0 ? unit : unit_begin[sequence + 1];
      if (from < last_unit) store_piece(side, thread % pieces, load_piece(next_from(sequence, from), thread % pieces));
    }
    sync_workers();
  }
  int side = 0;
  // Notes are made where a sequence is long, by those who share it.
  const auto first_group = [&](int begin) { return run_of(units, begin, groups); };
  const auto a_group = [&] { return (units / groups + 1 + warp_size - 1) / warp_size; };
  // The first sequence is counted with the last, where there are several: both answers take as long as one.
  bool pending = false;
  const auto first_unit = [&] { return run_begin(units, me, groups); };
  const auto first_sequence = [&] { return find_run(unit_begin, sequences, first_unit()); };
  while (unit < last_unit) {
    const int begin = unit_begin[sequence], end = unit_begin[sequence + 1];
    const int count = min(end, last_unit) - unit;
    unsigned chooses = dry ? 1 : 0;  // bit 0: for this sequence, 1: for the one that was pending
    if (!dry) {
      const int first_token = token_begin[sequence];
      const int rows = (token_begin[sequence + 1] - first_token) * heads;
      const int first_row = first_token * heads;
      const bool noted = end - begin > most_direct;
      uint4 q[holds_queries ? 4 : 1];
      if constexpr (holds_queries) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          q[c] = *reinterpret_cast<const uint4*>(&queries[side * columns + g][Row::k_dimension(c, j)]);
      }
      if constexpr (ColumnTiles > 1) {
        sync_workers();
        for (int i = thread; i < pieces; i += workers) store_piece(0, i, load_piece(sequence, i));
        sync_workers();
      }
      for (int done = 0; done < count; done += held) {
        const int n = min(held, count - done);
        for (int i = 0; i < n; ++i, ++next) {
          if (Sets > 1 && next % Sets != set) continue;
          const int stage = next % Stages;
          barrier_wait(&full[stage], static_cast<unsigned>(next / Stages) & 1);
          const bool gone = absent[stage] != 0;
          std::uint32_t k0[16], k1[16];
          const std::byte* from =
              ring + stage * Shape::stage_bytes + (warp % 8 * 16 + g) * (head_dim * Row::element_bytes);
          Row::load_k(from, j, k0);
          Row::load_k(from + 8 * head_dim * Row::element_bytes, j, k1);
          const auto multiply = [&](float(&s)[2][4], int column) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              uint4 v;
              if constexpr (holds_queries) {
                v = q[c];
              } else {
                v = *reinterpret_cast<const uint4*>(&queries[side * columns + column + g][Row::k_dimension(c, j)]);
              }
              mma_bf16(s[0], k0[4 * c], k1[4 * c], k0[4 * c + 1], k1[4 * c + 1], v.x, v.y);
              mma_bf16(s[1], k0[4 * c + 2], k1[4 * c + 2], k0[4 * c + 3], k1[4 * c + 3], v.z, v.w);
            }
          };
          const auto offer = [&](const float(&s)[2][4], int first_column) {
            offer_scores(s, gone, lane, [&](int column) -> std::uint32_t& { return best[first_column + column][i]; });
          };
          if constexpr (ColumnTiles == 1) {
            float s[2][4] = {};
            multiply(s, 0);
            barrier_arrive(&empty[stage]);
            offer(s, 0);
          } else {
            barrier_arrive(&empty[stage]);
#pragma unroll 2
            for (int t = 0; t < ColumnTiles; ++t) {
              if (t * 8 >= rows) break;
              float s[2][4] = {};
              multiply(s, t * 8);
              offer(s, t * 8);
            }
          }
        }
        sync_workers();
        // A warp a row: out, and cleared.
        for (int row = warp; row < columns; row += warps) {
          // Of several tokens, the earlier ones have fewer candidates.
          int limit = end - begin;
          if (rows > heads && row < rows) {
            limit = Choice(args, max(args.batch.positions[first_token + row / heads], 0)).candidates(args.init_blocks);
          }
          for (int base = 0; base < n; base += warp_size) {
            const int i = base + lane;
            const int place = unit - begin + done + i;
            const std::uint32_t key = i < n && place < limit ? best[row][i] : 0;
            if (i < n) best[row][i] = 0;
            if (row >= rows) continue;
            if (i < n) __stcg(&scores[std::int64_t{first_row + row} * call.blocks + place], key);
            if (noted) {
              const std::uint32_t highest = __reduce_max_sync(all_lanes, key);
              const int note = (me - first_group(begin)) * a_group() + (done + base) / warp_size;
              if (lane == 0) __stcg(&call.notes[std::int64_t{first_row + row} * call.most_notes + note], highest);
            }
          }
          if (noted && row < rows && done + n == count) {  // the others that it may have had
            std::uint32_t* const of_row =
                call.notes + std::int64_t{first_row + row} * call.most_notes + (me - first_group(begin)) * a_group();
            for (int note = (count + warp_size - 1) / warp_size + lane; note < a_group(); note += warp_size) {
              __stcg(&of_row[note], 0u);
            }
          }
        }
        if (done + held < count) sync_workers();
      }
      const bool alone = count == end - begin, more = unit + count < last_unit;
      if (ColumnTiles == 1 && more) {
        side ^= 1;
        if (unit != first_unit() && thread < pieces) {  // the second one's came with the first one's
          store_piece(side, thread, load_piece(next_from(sequence, unit + count), thread));
        }
      }
      sync_workers();
      if (more && !alone) {
        pending = true;
      } else {
        const auto count_in = [&](int of_sequence, int own) {
          const int all = unit_begin[of_sequence + 1] - unit_begin[of_sequence];
          const unsigned before = add_in_order(&call.counters[of_sequence], static_cast<unsigned>(own));
          const bool last = before + static_cast<unsigned>(own) == static_cast<unsigned>(all);
          if (last) call.counters[of_sequence] = 0;
          return last ? 1 : 0;
        };
        const bool both = !more && pending;
        if (!alone || both) {
          if (thread == 0) is_last[0] = alone ? 1 : count_in(sequence, count);
          if (thread == warp_size) {
            const int first = first_sequence();
            is_last[1] = both ? count_in(first, unit_begin[first + 1] - first_unit()) : 0;
          }
          sync_workers();
          chooses = (is_last[0] != 0 ? 1u : 0u) | (is_last[1] != 0 ? 2u : 0u);
        } else {
          chooses = 1;
        }
      }
    }
#pragma unroll 1
    for (; chooses != 0; chooses &= chooses - 1) {
      const int of_sequence = (chooses & 1) != 0 ? sequence : first_sequence();
      const int begin = unit_begin[of_sequence], end = unit_begin[of_sequence + 1];
      const int first_token = token_begin[of_sequence];
      const int rows = (token_begin[of_sequence + 1] - first_token) * heads;
      const std::int64_t first_row = std::int64_t{first_token} * heads;
      const bool noted = end - begin > most_direct;
      const Contributors contributors{units, groups, begin, end, first_group(begin), a_group()};
      const bool directly = end - begin <= list_room;
      const int split = directly ? 1 : split_of(rows);
      const int worker = dry ? 0 : warp;
      const int part = worker % split;
      ShortList& list = lists[warp];
      const auto sync_row = [&] {
        if (dry) {
          __syncwarp();
        } else {
          sync_workers();
        }
      };
#pragma unroll 1
      for (int first = 0; first < rows; first += warps / split) {
        const int row = first + worker / split;
        int position = row < rows ? own_position[of_sequence] : no_blocks;
        if (!dry && position == several_tokens) {
          const int token = first_token + row / heads;
          position = limit_of(args, token, of_sequence) >= 0 ? args.batch.positions[token] : no_blocks;
        }
        const Choice choice(args, max(position, 0));
        const bool there = dry || (position >= 0 && choice.slots > 0);
        const std::uint32_t* const of_row = scores + (first_row + row) * call.blocks;
        std::uint32_t keys[2];
        int blocks[2];
        if (directly) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            blocks[h] = h * warp_size + lane;
            keys[h] = there && !dry && blocks[h] < end - begin ? __ldcg(of_row + blocks[h]) : 0;
          }
        } else {
          // Where there are notes, the best of them first: the best scores are among those that they stand for.
          const auto part_of = [&](const std::uint32_t* array, int count) {
            const int from = count * part / split, to = count * (part + 1) / split;
            return Candidates{array, dry, false, from, to, (to - from + warp_size - 1) / warp_size};
          };
          Candidates of = part_of(of_row, end - begin);
          if (noted) {
            of = part_of(call.notes + (first_row + row) * call.most_notes,
                         (run_of(units, end - 1, groups) - contributors.first + 1) * contributors.a_group);
          }
#pragma unroll 1
          for (int round = noted ? 0 : 1; round < 2; ++round) {
            const int chosen = there ? choose_of(of, choice.slots, list, lane) : 0;
            if (lane == 0) list_count[warp] = chosen;
            sync_row();
            merge_lists(&lists[warp - part], &list_count[warp - part], dry ? 1 : split, lane, keys, blocks);
            if (round == 1) break;
            unsigned best[2];
            find_best(keys, list, choice.slots, lane, best);
            const int firsts = __popc(best[0]), all = firsts + __popc(best[1]);
            const int begin_of_part = all * part / split, end_of_part = all * (part + 1) / split;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const int place = (h == 0 ? 0 : firsts) + __popc(best[h] & ((1u << lane) - 1));
              if ((best[h] >> lane & 1) != 0 && place >= begin_of_part && place < end_of_part) {
                list.picks[place - begin_of_part] = blocks[h];
              }
            }
            __syncwarp();
            of = Candidates{of_row, dry, true, 0, 0, end_of_part - begin_of_part};
            if (lane < of.count) contributors.run(list.picks[lane], of.from, of.to);
            sync_row();  // the lists have been read
          }
        }
        if (dry || (row < rows && part == 0)) {
          std::int32_t* const ids = dry ? list.ids : args.block_ids + (first_row + row) * args.topk;
          if (dry || position >= 0) {
            unsigned best[2];
            find_best(keys, list, choice.slots, lane, best);
            write_ids(best, blocks, choice, args.init_blocks, args.topk, ids, lane);
          } else {
            for (int i = lane; i < args.topk; i += warp_size) ids[i] = -1;
          }
        }
        if (dry) return;
        if (!directly) sync_workers();  // the lists have been read
      }
    }
    unit += count;
    sequence = next_from(sequence, unit);
  }
#endif
}

// Notes of a row, at most: with u units a block of threads, those of n come from n / u + 2 of them, which make u / 32 + 2
// notes each.
inline int most_notes(int blocks, int sequences, int groups) {
  if (blocks <= most_direct) return 0;
  return std::max(4 * groups, static_cast<int>(blocks / 16 + std::int64_t{blocks} * sequences / groups / 16 + 8));
}

}  // namespace m3::ops::cuda
