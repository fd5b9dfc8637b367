// Tiles and results of matmul_widened_sm90.cuh.
#pragma once

#include "src/ops/cuda/matmul_wide_results_sm90.cuh"
#include "src/ops/cuda/widened_rows_sm90.cuh"

namespace m3::ops::cuda {

// `Halves`: the items of a tile are one product, or two halves.
template <WeightFormat Format, int Halves>
struct WidenedLayout {
  static constexpr bool by_rows = true;              // the blocks of a cluster divide the rows of W
  static constexpr int half_items = 144;             // at most, of a product
  static constexpr int items = Halves * half_items;  // of a block
  static constexpr int cluster_items = items;
  static constexpr int blocks = 2;  // of 64 rows of W
  // A stage of W is rows of 128 bytes: tensor copies cost by the row.
  static constexpr int weight_steps = 128 / step_bytes(Format);
  static constexpr int weight_columns = Format == WeightFormat::bf16 ? 64 : 128;  // as the maps count them (bytes else)
  static constexpr int block_bytes = 64 * 128;
  static constexpr int weight_bytes = blocks * block_bytes;
  static constexpr int weight_stages = Format == WeightFormat::bf16 ? 4 : Halves == 2 ? 3 : 5;
  static constexpr int x_bytes = items * 128;
  static constexpr int x_stages = Halves == 2 ? 4 : 6;
  static constexpr int scale_row = scale_row_bytes<Format>;
  static constexpr int scale_bytes = blocks * 64 * scale_row;  // of an octet
  static constexpr int scale_slots = 4;
  static constexpr int staging_bytes = 32 * (32 * 2 + 16);  // of a warpgroup, twice
  using Table = TileTable<items, blocks * 64>;
  // Places.
  static constexpr int x = weight_stages * weight_bytes;
  static constexpr int scales = x + x_stages * x_bytes;
  static constexpr int staging = scales + scale_slots * scale_bytes;
  static constexpr int tables = staging + 4 * staging_bytes;
  static constexpr int barriers = tables + 2 * Table::bytes;
  static constexpr int bytes = barriers + (4 + 2 * weight_stages + 2 * x_stages) * 8 + 896;  // to align 128 by to 1024
  // An octet's slot is free when its first stage of W is: octets that stages in flight and in use can belong to.
  static_assert(scale_slots >= (weight_stages * weight_steps + wide_octet - 1) / wide_octet + 1);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

template <typename Layout>
struct WidenedStages : Shared<Layout> {
  __device__ std::uint32_t weights(int stage) const { return this->at(stage * Layout::weight_bytes); }
  __device__ std::uint32_t x(int stage) const { return this->at(Layout::x + stage * Layout::x_bytes); }
  __device__ std::uint32_t scales(int octet) const {
    return this->at(Layout::scales + octet % Layout::scale_slots * Layout::scale_bytes);
  }
  __device__ std::uint32_t weights_full(int stage) const { return this->barrier(4 + stage); }
  __device__ std::uint32_t weights_empty(int stage) const { return weights_full(Layout::weight_stages + stage); }
  __device__ std::uint32_t x_full(int stage) const { return weights_full(2 * Layout::weight_stages + stage); }
  __device__ std::uint32_t x_empty(int stage) const { return x_full(Layout::x_stages + stage); }
};

// Where the second half of the items begins: in the products, where there are two, and in what the blocks copy.
__device__ inline int half_of(int copied) { return (copied + 15) / 16 * 8; }
// Steps of x in one stage: few items leave room.
template <typename Layout>
__device__ inline int steps_of_stage(int copied) {
  return copied <= Layout::items / 4 ? 4 : copied <= Layout::items / 2 ? 2 : 1;
}

// Which of a block's 128 rows of W a thread's first is (lane 4 g + j has row g of its warp's). Gate's and up's
// rows alternate by eights; the order of an arranged result's columns is that of gate's rows.
template <WideStore Kind, bool Arranged>
__device__ inline int first_row_of(int thread) {
  const int group = thread / 128;
  const int warp = thread % 128 / warp_size;
  const int g = thread % warp_size / 4;
  if constexpr (Kind != WideStore::activated) return group * 64 + warp * 16 + g;
  if constexpr (!Arranged) return group * 32 + warp * 8 + g;
  return (g >> 1) * 16 + group * 8 + (g & 1) * 4 + warp;
}

// What the kinds of results differ in.
template <WideStore Kind>
struct WidenedRun {
  static constexpr bool activated = Kind == WideStore::activated;
  static constexpr int chunk = Kind == WideStore::floats ? 8 : activated ? 32 : 16;  // items at a time
  static constexpr int rows = activated ? 32 : 64;                                   // of a warpgroup's result
  static constexpr int element = Kind == WideStore::floats ? 4 : 2;                  // bytes
  static constexpr int pitch = rows * element + 16;
  static constexpr int pieces = rows * element / 16;
};

// The sums of some items at a time through shared memory, then whole runs of a result's row by 16 bytes. Two places take
// turns, so that one barrier a time is enough.
template <WideStore Kind, bool Arranged, WeightFormat Format, int Halves>
__device__ inline void store_widened(const float (&sums)[Halves][WidenedLayout<Format, Halves>::half_items / 2],
                                     const WideArgs& wide, const WidenedStages<WidenedLayout<Format, Halves>>& stages,
                                     int turn) {
  using Layout = WidenedLayout<Format, Halves>;
  using Table = typename Layout::Table;
  using Run = WidenedRun<Kind>;
  constexpr bool activated = Run::activated;
  constexpr int chunk = Run::chunk, run = Run::rows, element = Run::element, pitch = Run::pitch, pieces = Run::pieces;
  static_assert(chunk * pitch <= Layout::staging_bytes);
  const MatmulArgs& args = wide.args;
  const int block_thread = fresh(static_cast<int>(threadIdx.x));
  const int thread = block_thread % 128;
  const int group = block_thread / 128;
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const std::uint32_t table = stages.table(turn);
  Place place;
  read_place(table + Table::place, place);
  const int first_row = place.row + group * run;
  const int rows = args.inline_parts[place.part].rows;
  const int column = args.inline_parts[place.part].first_column + first_row;
  float factors[2], bias[2] = {};  // of this thread's rows: 8 apart, or gate and up
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int local = first_row_of<Kind, Arranged>(block_thread) + r * (activated ? 64 : 8);
    factors[r] = load_float(table + Table::row_factors + local * 4);
    const int from_first = local - group * 64;
    if (!activated && args.bias != nullptr && first_row + from_first < rows) bias[r] = args.bias[column + from_first];
  }
  const std::uint32_t staging = stages.staging(group);
  // Where this lane writes: of a matrix of 8 items by 8 rows, or its own numbers.
  std::uint32_t to = staging;
  if constexpr (Kind == WideStore::floats) {
    to += 2 * j * pitch + (warp * 16 + g) * 4;
  } else if constexpr (activated) {  // matrices: eights of items
    to += lane * pitch + warp * 16;
  } else {  // matrices: two eights of rows of two eights of items
    const int matrix = lane / 8;
    to += (matrix / 2 * 8 + lane % 8) * pitch + (warp * 16 + matrix % 2 * 8) * 2;
  }
  const std::uint32_t from = staging + thread / pieces * pitch + thread % pieces * 16;
  const int piece_row = first_row + thread % pieces * (16 / element);
  const bool whole = wide.vector_stores != 0 && piece_row + 16 / element <= rows;
  auto* const out =
      static_cast<std::byte*>(args.out) + (column + thread % pieces * (16 / element)) * std::int64_t{element};
  const std::int64_t stride = args.out_stride * element;
  constexpr int together = 128 / pieces;  // items whose runs the warpgroup copies at a time
  constexpr int eights = Layout::half_items / 8;
  int used = 0;  // of the two places
#pragma unroll
  for (int h = 0; h < Halves; ++h) {
    const int first_item = h == 0 ? 0 : half_of(place.copied);
    const int items = Halves == 2 && h == 0 ? min(place.count, half_of(place.copied)) : place.count - first_item;
    const std::uint32_t item_factors = table + Table::token_factors + (first_item + 2 * j) * 4;
    // What eight `t` of items adds up to, in the order of the sums.
    const auto scaled = [&](int t, float(&values)[4]) {
      const uint2 both = load_words2(item_factors + t * 32);
      const float factor[2] = {__uint_as_float(both.x), __uint_as_float(both.y)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = fmaf(sums[h][t * 4 + i], factors[i / 2] * factor[i % 2], bias[i / 2]);
      }
    };
    const auto activate_one = [&](float gate, float up) {
      return activate_fast(round_bf16(gate), round_bf16(up), args.alpha, args.limit, args.beta);
    };
#pragma unroll
    for (int c = 0; c < (eights * 8 + chunk - 1) / chunk; ++c) {
      if (c * chunk >= items) break;
      const int place_offset = used % 2 * Layout::staging_bytes;
      ++used;
      std::uint32_t words[4] = {};
#pragma unroll
      for (int e = 0; e < chunk / 8; ++e) {
        const int t = c * (chunk / 8) + e;
        if (t >= eights) break;
        float values[4];
        scaled(t, values);
        if constexpr (Kind == WideStore::floats) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            store_float(to + place_offset + i % 2 * pitch + i / 2 * 8 * 4, values[i]);
          }
        } else if constexpr (activated) {
          words[e] = pack_bf16(activate_one(values[0], values[2]), activate_one(values[1], values[3]));
        } else {
          words[2 * e] = pack_bf16(values[0], values[1]);
          words[2 * e + 1] = pack_bf16(values[2], values[3]);
        }
      }
      if constexpr (Kind != WideStore::floats) {
        store_matrices_transposed(to + place_offset, words[0], words[1], words[2], words[3]);
      }
      sync_threads_of(1 + group, 128);
#pragma unroll
      for (int i = 0; i < (chunk + together - 1) / together; ++i) {
        const int item = c * chunk + i * together + thread / pieces;
        if (item >= items || (chunk < together && thread / pieces >= chunk)) continue;
        const uint4 numbers = load_words4(from + place_offset + i * together * pitch);
        const std::uint32_t row = load_word(table + Table::token_rows + (first_item + item) * 4);
        store_piece<element>(out + static_cast<int>(row) * stride, numbers, whole, rows - piece_row);
      }
    }
  }
  sync_threads_of(1 + group, 128);  // before the staging is written again
}

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
