// What this machine can do at best, measured now: every speed is shown beside one of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/thread_pool.h"

namespace m3::ops {

// Bytes per second that a read loop over a buffer far beyond the caches reaches with these threads. Takes about
// half a second; the best of several passes.
double measure_read_bandwidth(ThreadPool& pool);

// fp32 operations per second (a fused multiply-add counts two) of a loop that stays in registers, with the widest
// instruction set that the cpu backend uses here (`isa`: "avx2", "avx512", or "" to pick as the backend does; the
// scalar loop where neither is there).
double measure_fp32_peak(ThreadPool& pool, const std::string& isa = "");

// Bytes of the last-level cache; 0 where the system does not tell.
std::int64_t last_cache_bytes();

namespace detail {
// `rounds` times 12 vector FMAs in registers; returns the operations done. `sink` keeps the work alive.
double fma_loop_avx2(std::int64_t rounds, float& sink);
double fma_loop_avx512(std::int64_t rounds, float& sink);
// Reads `bytes` (a multiple of 512) once, front to back; returns a sum of what was read.
std::uint64_t read_loop_avx2(const std::byte* data, std::int64_t bytes);
std::uint64_t read_loop_avx512(const std::byte* data, std::int64_t bytes);
}  // namespace detail

}  // namespace m3::ops
