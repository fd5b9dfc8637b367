// Hopper's own instructions (PTX, sm_90a): barriers in shared memory, bulk copies, products of a warpgroup (wgmma). Used
// inside `#if defined(__CUDA_ARCH_FEAT_SM90_ALL)` alone.
//
// Layouts in shared memory that wgmma reads (bf16). With swizzle S = 128, 64 or 32 bytes a tile's rows are S bytes long,
// eight rows are an atom of 8 · S bytes, and the 16-byte piece p of row r stands at piece p ^ (r · S / 128 % (S / 16)); the
// tile lies at a multiple of 1024 bytes.
//   K-major (A; B as [n][k]): rows are m or n, S / 2 values of k wide. `step` = 8 · S, the bytes from eight rows to the next;
//     the next k16 begins 32 bytes on, wider K is a tile of its own.
//   MN-major (B as [k][n], as V is): rows are k, S / 2 values of n wide. `step` = 8 · S, from eight k to the next eight;
//     `chunk` = the bytes from S / 2 values of n to the next; the next k16 begins 2 · step on.
#pragma once

#include <cstdint>

namespace m3::ops::cuda {

inline constexpr int warpgroup_size = 128;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- barriers in shared memory (mbarrier) ----------------------------------------------------------------------------

__device__ inline void barrier_init(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After the inits, before other threads or the asynchronous proxy use them (then a block barrier).
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives and lets the phase wait for `bytes` of bulk copies too.
__device__ inline void barrier_expect(std::uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Until the phase of this parity has ended; a fresh barrier's phase -1 (parity 1) has.
__device__ inline void barrier_wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// One arrival, counted in the barrier's expected ones, once this thread's copy_async_16 so far have landed.
__device__ inline void barrier_arrive_after_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// --- copies ----------------------------------------------------------------------------------------------------------

// One thread copies `bytes`, a multiple of 16 between addresses that are; they count towards the barrier's phase.
__device__ inline void copy_bulk(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// As copy_bulk, for what is read once: leaves the L2 first.
__device__ inline void copy_bulk_once(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n"
      "}" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
// What threads wrote to shared memory (stores, copy_async_16) is seen by wgmma and bulk copies after it.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- warps and registers ---------------------------------------------------------------------------------------------

// Named barriers 1 … 15 (0 is the block's): `threads` of them, whole warps.
__device__ inline void sync_threads_of(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_threads_of(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// All warps of a warpgroup; multiples of 8. The sum over the block must fit what it was launched with.
template <int Registers>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// --- wgmma -----------------------------------------------------------------------------------------------------------

// Where an operand lies (see the head): Swizzle 128, 64 or 32.
template <int Swizzle>
__device__ inline std::uint64_t tile_descriptor(const void* tile, unsigned step, unsigned chunk = 16) {
  constexpr std::uint64_t mode = Swizzle == 128 ? 1 : Swizzle == 64 ? 2 : 3;
  return ((shared_address(tile) >> 4) & 0x3fffu) | (static_cast<std::uint64_t>((chunk >> 4) & 0x3fffu) << 16) |
         (static_cast<std::uint64_t>((step >> 4) & 0x3fffu) << 32) | (mode << 62);
}
// The same operand `bytes` on.
__device__ inline std::uint64_t descriptor_at(std::uint64_t descriptor, unsigned bytes) {
  return descriptor + (bytes >> 4);
}

// Before the first wgmma, and whenever registers it reads or adds to were touched by other instructions.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across a fence or wait.
template <int Count>
__device__ inline void pin(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// d [64, N] = a [64, 16] · b [16, N] (+ d where `add`), bf16 in, fp32 sums. Warp w of the group holds rows 16 w …; lane
// 4 g + j holds in d[4 i + 0, 1] row g, columns 8 i + 2 j, + 1, in d[4 i + 2, 3] row g + 8. `Rows`: b is MN-major.
// wgmma<N, Rows>(d, a, b, add): a by descriptor (K-major). wgmma<N, Rows>(d, a0 … a3, b, add): a in registers, as
// mma.m16n8k16's: a0 row g, columns 2 j, + 1; a1 row g + 8; a2 row g, columns 2 j + 8, + 9; a3 row g + 8.
template <int N, bool Rows>
struct Wgmma;

// Eight accumulators: their places in the text and their operands.
#define M3_TEXT_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define M3_TEXT_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define M3_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define M3_TEXT_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define M3_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define M3_TEXT_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define M3_TEXT_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define M3_TEXT_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define M3_TEXT_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define M3_TEXT_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define M3_TEXT_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define M3_TEXT_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define M3_TEXT_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define M3_TEXT_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define M3_TEXT_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define M3_TEXT_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define M3_SUMS(b)                                                                                            \
  "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), "+f"(d[b + 6]), \
      "+f"(d[b + 7])
#define M3_TEXT_TO_8 M3_TEXT_0
#define M3_SUMS_TO_8 M3_SUMS(0)
#define M3_TEXT_TO_16 M3_TEXT_TO_8 M3_TEXT_8
#define M3_SUMS_TO_16 M3_SUMS_TO_8, M3_SUMS(8)
#define M3_TEXT_TO_24 M3_TEXT_TO_16 M3_TEXT_16
#define M3_SUMS_TO_24 M3_SUMS_TO_16, M3_SUMS(16)
#define M3_TEXT_TO_32 M3_TEXT_TO_24 M3_TEXT_24
#define M3_SUMS_TO_32 M3_SUMS_TO_24, M3_SUMS(24)
#define M3_TEXT_TO_40 M3_TEXT_TO_32 M3_TEXT_32
#define M3_SUMS_TO_40 M3_SUMS_TO_32, M3_SUMS(32)
#define M3_TEXT_TO_48 M3_TEXT_TO_40 M3_TEXT_40
#define M3_SUMS_TO_48 M3_SUMS_TO_40, M3_SUMS(40)
#define M3_TEXT_TO_56 M3_TEXT_TO_48 M3_TEXT_48
#define M3_SUMS_TO_56 M3_SUMS_TO_48, M3_SUMS(48)
#define M3_TEXT_TO_64 M3_TEXT_TO_56 M3_TEXT_56
#define M3_SUMS_TO_64 M3_SUMS_TO_56, M3_SUMS(56)
#define M3_TEXT_TO_72 M3_TEXT_TO_64 M3_TEXT_64
#define M3_SUMS_TO_72 M3_SUMS_TO_64, M3_SUMS(64)
#define M3_TEXT_TO_80 M3_TEXT_TO_72 M3_TEXT_72
#define M3_SUMS_TO_80 M3_SUMS_TO_72, M3_SUMS(72)
#define M3_TEXT_TO_88 M3_TEXT_TO_80 M3_TEXT_80
#define M3_SUMS_TO_88 M3_SUMS_TO_80, M3_SUMS(80)
#define M3_TEXT_TO_96 M3_TEXT_TO_88 M3_TEXT_88
#define M3_SUMS_TO_96 M3_SUMS_TO_88, M3_SUMS(88)
#define M3_TEXT_TO_104 M3_TEXT_TO_96 M3_TEXT_96
#define M3_SUMS_TO_104 M3_SUMS_TO_96, M3_SUMS(96)
#define M3_TEXT_TO_112 M3_TEXT_TO_104 M3_TEXT_104
#define M3_SUMS_TO_112 M3_SUMS_TO_104, M3_SUMS(104)
#define M3_TEXT_TO_120 M3_TEXT_TO_112 M3_TEXT_112
#define M3_SUMS_TO_120 M3_SUMS_TO_112, M3_SUMS(112)
#define M3_TEXT_TO_128 M3_TEXT_TO_120 M3_TEXT_120
#define M3_SUMS_TO_128 M3_SUMS_TO_120, M3_SUMS(120)

// N; its accumulators; the numbers of the operands behind them.
#define M3_WGMMA(N, COUNT, P0, P1, P2, P3, P4, P5)                                                            \
  template <bool Rows>                                                                                        \
  struct Wgmma<N, Rows> {                                                                                     \
    __device__ static void run(float (&d)[COUNT], std::uint64_t a, std::uint64_t b, int add) {                \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2                                                   \
                   ", 0;\n"                                                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" M3_TEXT_TO_##COUNT            \
                   "}, %" #P0 ", %" #P1 ", p, 1, 1, 0, %" #P3 ";\n}"                                          \
                   : M3_SUMS_TO_##COUNT                                                                       \
                   : "l"(a), "l"(b), "r"(add), "n"(Rows ? 1 : 0));                                            \
    }                                                                                                         \
    __device__ static void run(float (&d)[COUNT], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,       \
                               std::uint32_t a3, std::uint64_t b, int add) {                                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5                                                   \
                   ", 0;\n"                                                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" M3_TEXT_TO_##COUNT            \
                   "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1, %" M3_LAST_##COUNT ";\n}" \
                   : M3_SUMS_TO_##COUNT                                                                       \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(Rows ? 1 : 0));                \
    }                                                                                                         \
  };
#define M3_LAST_8 "14"
#define M3_LAST_16 "22"
#define M3_LAST_24 "30"
#define M3_LAST_32 "38"
#define M3_LAST_40 "46"
#define M3_LAST_48 "54"
#define M3_LAST_64 "70"
#define M3_LAST_80 "86"
#define M3_LAST_96 "102"
#define M3_LAST_128 "134"
M3_WGMMA(16, 8, 8, 9, 10, 11, 12, 13)
M3_WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
M3_WGMMA(48, 24, 24, 25, 26, 27, 28, 29)
M3_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
M3_WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
M3_WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
M3_WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
M3_WGMMA(160, 80, 80, 81, 82, 83, 84, 85)
M3_WGMMA(192, 96, 96, 97, 98, 99, 100, 101)
M3_WGMMA(256, 128, 128, 129, 130, 131, 132, 133)
#undef M3_WGMMA
#undef M3_SUMS

template <int N, bool Rows = false>
__device__ inline void wgmma(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool add = true) {
  Wgmma<N, Rows>::run(d, a, b, add ? 1 : 0);
}
template <int N, bool Rows = false>
__device__ inline void wgmma(float (&d)[N / 2], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                             std::uint64_t b, bool add = true) {
  Wgmma<N, Rows>::run(d, a0, a1, a2, a3, b, add ? 1 : 0);
}

}  // namespace m3::ops::cuda
