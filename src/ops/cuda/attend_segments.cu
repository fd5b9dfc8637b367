// Attention of the vision tower: every patch over its own segment, 80 dimensions a head (spec §4.6).
#include "src/ops/cuda/attend_segments.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int tile_rows = 64;  // queries of a block of threads: 16 a warp
constexpr int tile_keys = 64;
constexpr int steps = vision_head_dim / 16;
constexpr int row_words = vision_head_dim / 2;
constexpr int stride_words = row_words + 4;  // neighbouring rows meet other banks

// A block takes 64 consecutive rows of one head and walks through the segments that hold them, each from its first key
// on and with sums of its own, so that a row does not depend on its neighbours, whatever they hold: 0 times infinity is
// not a number.
// Lane 4g + j of a warp holds, of scores, rows g and g + 8 at keys 8n + 2j, + 1; of the result, dimensions 16c + 4j … + 3.
__global__ void __launch_bounds__(128) attend_segments_sm80(const __grid_constant__ VisionAttendArgs args) {
  __shared__ __align__(16) std::uint32_t keys[tile_keys][stride_words];
  __shared__ __align__(16) std::uint32_t values[tile_keys][stride_words];
  wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int head = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) * tile_rows;
  const auto first_row = static_cast<int>(args.first_row);
  const int last = min(tile + tile_rows, args.rows) - 1;
  const int begin = segment_of_row(args, first_row + tile).begin;
  const int all = segment_of_row(args, first_row + last).end;
  const int width = args.heads * vision_head_dim;

  int row[2];
  Seen seen[2];
  std::uint32_t q[steps][4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row[r] = min(tile + thread / warp_size * 16 + g + 8 * r, last);
    seen[r] = segment_of_row(args, first_row + row[r]);
    const std::uint16_t* from = args.packed + (args.first_row + row[r]) * args.packed_stride + head * vision_head_dim;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      q[s][r] = *reinterpret_cast<const std::uint32_t*>(from + 16 * s + 2 * j);
      q[s][r + 2] = *reinterpret_cast<const std::uint32_t*>(from + 16 * s + 8 + 2 * j);
    }
  }

  const float scale = args.scale * log2_e;
  for (int segment = begin, end = 0; segment < all; segment = end) {
    end = segment_of_row(args, segment).end;
    float highest[2] = {no_score, no_score};
    float sum[2] = {0, 0};
    float acc[steps][2][4] = {};
    for (int first = segment; first < end; first += tile_keys) {
      __syncthreads();  // the tile before is read
      for (int i = thread; i < tile_keys * (row_words / 4); i += 128) {
        const int key = i / (row_words / 4);
        const int chunk = i % (row_words / 4);
        uint4 k = {0, 0, 0, 0}, v = {0, 0, 0, 0};
        if (first + key < end) {
          const std::uint16_t* from = args.packed + (std::int64_t{first} + key) * args.packed_stride + width +
                                      head * vision_head_dim + chunk * 8;
          k = *reinterpret_cast<const uint4*>(from);
          v = *reinterpret_cast<const uint4*>(from + width);
        }
        *reinterpret_cast<uint4*>(&keys[key][chunk * 4]) = k;
        *reinterpret_cast<uint4*>(&values[key][chunk * 4]) = v;
      }
      __syncthreads();
      float scores[tile_keys / 8][4] = {};
#pragma unroll
      for (int n = 0; n < tile_keys / 8; ++n) {
#pragma unroll
        for (int s = 0; s < steps; ++s) {
          mma_bf16(scores[n], q[s][0], q[s][1], q[s][2], q[s][3], keys[8 * n + g][8 * s + j],
                   keys[8 * n + g][8 * s + 4 + j]);
        }
      }
      float now[2] = {highest[0], highest[1]};
#pragma unroll
      for (int n = 0; n < tile_keys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first + 8 * n + 2 * j + i % 2;
          const bool sees = key >= seen[i / 2].begin && key < min(end, seen[i / 2].end);
          scores[n][i] = sees ? scores[n][i] * scale : no_score;
          now[i / 2] = fmaxf(now[i / 2], scores[n][i]);
        }
      }
      float shift[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        now[r] = fmaxf(now[r], __shfl_xor_sync(all_lanes, now[r], 1));
        now[r] = fmaxf(now[r], __shfl_xor_sync(all_lanes, now[r], 2));
        shift[r] = now[r] == no_score ? 0.0f : now[r];
        const float factor = exp2f(highest[r] - shift[r]);  // 0 at the start
        highest[r] = now[r];
        sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < steps; ++c) {
#pragma unroll
          for (int half = 0; half < 2; ++half) acc[c][half][2 * r] *= factor, acc[c][half][2 * r + 1] *= factor;
        }
      }
#pragma unroll
      for (int step = 0; step < tile_keys / 16; ++step) {
        std::uint32_t p[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float(&s)[4] = scores[2 * step + half];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[i] = exp2f(s[i] - shift[i / 2]);
            sum[i / 2] += s[i];
          }
          p[2 * half] = pack_bf16(s[0], s[1]);
          p[2 * half + 1] = pack_bf16(s[2], s[3]);
        }
        const int key = 16 * step + 2 * j;
#pragma unroll
        for (int c = 0; c < steps; ++c) {  // dimensions 16c + 2g, + 1 of four keys
          const std::uint32_t v0 = values[key][8 * c + g], v1 = values[key + 1][8 * c + g];
          const std::uint32_t v2 = values[key + 8][8 * c + g], v3 = values[key + 9][8 * c + g];
          mma_bf16(acc[c][0], p[0], p[1], p[2], p[3], __byte_perm(v0, v1, 0x5410), __byte_perm(v2, v3, 0x5410));
          mma_bf16(acc[c][1], p[0], p[1], p[2], p[3], __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x7632));
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(all_lanes, sum[r], 1);
      sum[r] += __shfl_xor_sync(all_lanes, sum[r], 2);
      if (seen[r].end != end || tile + thread / warp_size * 16 + g + 8 * r > last) continue;
      std::uint16_t* to = args.out + row[r] * args.out_stride + head * vision_head_dim;
#pragma unroll
      for (int c = 0; c < steps; ++c) {
        const uint2 four = {pack_bf16(acc[c][0][2 * r] / sum[r], acc[c][1][2 * r] / sum[r]),
                            pack_bf16(acc[c][0][2 * r + 1] / sum[r], acc[c][1][2 * r + 1] / sum[r])};
        *reinterpret_cast<uint2*>(to + 16 * c + 4 * j) = four;
      }
    }
  }
}

}  // namespace

cudaError_t launch_vision_attend(const VisionAttendArgs& args, cudaStream_t stream) {
  if (attend_segments_takes_sm90(args)) return launch_attend_segments_sm90(args, stream);
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((args.rows + tile_rows - 1) / tile_rows), static_cast<unsigned>(args.heads));
  return launch(attend_segments_sm80, grid, 128, 0, stream, args);
}

}  // namespace m3::ops::cuda
