// More widths of wgmma (in steps of 8 between 96 and 152), and Hopper's tensor copies and clusters: what the products of
// many tokens need beside wgmma.cuh. Used inside `#if defined(__CUDA_ARCH_FEAT_SM90_ALL)` alone.
#pragma once

#include "src/ops/cuda/tensor_map.h"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

#define M3_SUMS(b)                                                                                            \
  "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), "+f"(d[b + 6]), \
      "+f"(d[b + 7])
#define M3_FOUR(b) "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3])
#define M3_TEXT_TO_52 M3_TEXT_TO_48 ", %48, %49, %50, %51"
#define M3_SUMS_TO_52 M3_SUMS_TO_48, M3_FOUR(48)
#define M3_TEXT_TO_60 M3_TEXT_TO_56 ", %56, %57, %58, %59"
#define M3_SUMS_TO_60 M3_SUMS_TO_56, M3_FOUR(56)
#define M3_TEXT_TO_68 M3_TEXT_TO_64 ", %64, %65, %66, %67"
#define M3_SUMS_TO_68 M3_SUMS_TO_64, M3_FOUR(64)
#define M3_TEXT_TO_76 M3_TEXT_TO_72 ", %72, %73, %74, %75"
#define M3_SUMS_TO_76 M3_SUMS_TO_72, M3_FOUR(72)

// d [64, N] += a [64, 16] · b [16, N] as wgmma() has it, b K-major, into the first N / 2 of `d`.
template <int N>
struct WgmmaItems;
#define M3_WGMMA(N, COUNT, P0, P1, P2, P3, P4, P5)                                                 \
  template <>                                                                                      \
  struct WgmmaItems<N> {                                                                           \
    __device__ static void run(float* d, std::uint64_t a, std::uint64_t b, int add) {              \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" M3_TEXT_TO_##COUNT \
                   "}, %" #P0 ", %" #P1 ", p, 1, 1, 0, 0;\n}"                                      \
                   : M3_SUMS_TO_##COUNT                                                            \
                   : "l"(a), "l"(b), "r"(add));                                                    \
    }                                                                                              \
    __device__ static void run(float* d, const std::uint32_t (&a)[4], std::uint64_t b, int add) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" M3_TEXT_TO_##COUNT \
                   "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1, 0;\n}"         \
                   : M3_SUMS_TO_##COUNT                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                \
    }                                                                                              \
  };
M3_WGMMA(16, 8, 8, 9, 10, 11, 12, 13)
M3_WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
M3_WGMMA(48, 24, 24, 25, 26, 27, 28, 29)
M3_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
M3_WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
M3_WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
M3_WGMMA(104, 52, 52, 53, 54, 55, 56, 57)
M3_WGMMA(112, 56, 56, 57, 58, 59, 60, 61)
M3_WGMMA(120, 60, 60, 61, 62, 63, 64, 65)
M3_WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
M3_WGMMA(136, 68, 68, 69, 70, 71, 72, 73)
M3_WGMMA(144, 72, 72, 73, 74, 75, 76, 77)
M3_WGMMA(152, 76, 76, 77, 78, 79, 80, 81)
#undef M3_WGMMA
#undef M3_SUMS
#undef M3_FOUR

// --- shared memory by its own addresses (32 bits) ----------------------------------------------------------------------

// The values are what barriers have made visible: not moved across them.
__device__ inline std::uint32_t load_word(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline std::uint32_t load_byte(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline std::uint32_t load_half(std::uint32_t address) {
  std::uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline uint2 load_words2(std::uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
  return value;
}
__device__ inline uint4 load_words4(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ inline float load_float(std::uint32_t address) { return __uint_as_float(load_word(address)); }
__device__ inline void store_word(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ inline void store_float(std::uint32_t address, float value) { store_word(address, __float_as_uint(value)); }

// As copy_async_16.
__device__ inline void copy_async_to(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Barriers, as wgmma.cuh has them.
__device__ inline void init_barrier(std::uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void expect(std::uint32_t barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void wait_for(std::uint32_t barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// At the same barrier of another block of the cluster.
__device__ inline void arrive_there(std::uint32_t barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// A K-major operand of 128-byte rows, swizzled, for wgmma (tile_descriptor<128>(tile, 1024)).
__device__ inline std::uint64_t rows_descriptor(std::uint32_t tile) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 16) | (tile >> 4);
}

// --- tensor copies ---------------------------------------------------------------------------------------------------

// One thread copies the box at (column, row) of the map's tensor; what lies outside of it is zero. Counts as bytes
// towards the barrier's phase. With a mask of blocks of the cluster: to the same place in each, and each one's barrier.
__device__ inline void copy_box(std::uint32_t shared, const TensorMap* map, int column, int row,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ inline void copy_box_to(std::uint16_t blocks, std::uint32_t shared, const TensorMap* map, int column,
                                   int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
// Likewise a box of a map of steps (encode_steps_map).
__device__ inline void copy_steps(std::uint32_t shared, const TensorMap* map, int step, int row,
                                  std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared),
      "l"(map), "r"(0), "r"(row), "r"(step), "r"(barrier)
      : "memory");
}
__device__ inline void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Before a map that lies in global memory is used; one thread for the block.
__device__ inline void acquire_map(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// --- clusters --------------------------------------------------------------------------------------------------------

__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Four bytes, by the low nibbles of `places`: byte i % 4 of `table` where i < 8, else its sign, eight times over.
__device__ inline std::uint32_t choose_bytes(std::uint32_t table, std::uint32_t places) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(bytes) : "r"(table), "r"(places));
  return bytes;
}

// Likewise of eight bytes, `table` then `more`.
__device__ inline std::uint32_t choose_bytes(std::uint32_t table, std::uint32_t more, std::uint32_t places) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(table), "r"(more), "r"(places));
  return bytes;
}

// Four 8 × 8 matrices of 16-bit numbers: lane 8 i + r gives the place (16 bytes) of matrix i's row r, and gets of each
// row lane / 4, columns lane % 4 · 2 and the next.
__device__ inline void load_matrices(std::uint32_t place, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(place)
               : "memory");
}

// Four 8 × 8 matrices of 16-bit numbers, each lane holding row lane / 4, columns lane % 4 · 2 and the next; written
// transposed: lane 8 i + c gives the place (16 bytes) of matrix i's column c.
__device__ inline void store_matrices_transposed(std::uint32_t place, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                 std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ inline void store_matrices_transposed_two(std::uint32_t place, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(place), "r"(a), "r"(b)
               : "memory");
}

}  // namespace m3::ops::cuda
