#include "src/ops/machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "src/base/error.h"

namespace m3::ops {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool has_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }
bool has_avx512() { return has_avx2() && __builtin_cpu_supports("avx512f") != 0; }

std::uint64_t read_loop_scalar(const std::byte* data, std::int64_t bytes) {
  std::array<std::uint64_t, 16> partial{};
  for (std::int64_t at = 0; at < bytes; at += 128) {
    for (std::size_t lane = 0; lane < 16; ++lane) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + at + lane * 8, 8);
      partial[lane] += word;
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : partial) sum += part;
  return sum;
}

double fma_loop_scalar(std::int64_t rounds, float& sink) {
  std::array<float, 16> sums{};
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (float& sum : sums) sum = sum * 0.999f + 0.001f;
  }
  for (const float sum : sums) sink += sum;
  return static_cast<double>(rounds) * 16 * 2;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  // Eight times the last cache, so that under an eighth of a pass can come from it.
  constexpr std::int64_t unit = 4096;
  const std::int64_t bytes =
      std::clamp<std::int64_t>(8 * last_cache_bytes(), std::int64_t{256} << 20, std::int64_t{2} << 30) / unit * unit;
  std::uint64_t (*loop)(const std::byte*, std::int64_t) = read_loop_scalar;
  if (has_avx2()) loop = detail::read_loop_avx2;
  if (has_avx512()) loop = detail::read_loop_avx512;
  // Not touched here: each thread first touches, and so places, the part it reads.
  const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
      static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(unit), static_cast<std::size_t>(bytes))),
      &std::free);
  if (buffer == nullptr) fail_resource("no memory for the {} bytes that measuring the read bandwidth takes", bytes);
  pool.split(bytes, unit, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(buffer.get() + begin, static_cast<int>(begin / unit % 255) + 1, static_cast<std::size_t>(end - begin));
  });
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pool.size()) * 8);
  double best = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int pass = 0; pass < 3 || (pass < 20 && seconds_since(start) < 0.4); ++pass) {
    const auto pass_start = std::chrono::steady_clock::now();
    pool.split(bytes, unit, [&](std::int64_t begin, std::int64_t end, int thread) {
      sums[static_cast<std::size_t>(thread) * 8] += loop(buffer.get() + begin, end - begin);
    });
    best = std::max(best, static_cast<double>(bytes) / seconds_since(pass_start));
  }
  volatile std::uint64_t keep = 0;
  for (const std::uint64_t sum : sums) keep = keep + sum;
  return best;
}

double measure_fp32_peak(ThreadPool& pool, const std::string& isa) {
  double (*loop)(std::int64_t, float&) = fma_loop_scalar;
  if (has_avx2() && isa != "scalar") loop = detail::fma_loop_avx2;
  if (has_avx512() && (isa.empty() || isa == "avx512")) loop = detail::fma_loop_avx512;
  std::vector<double> operations(static_cast<std::size_t>(pool.size()) * 8);
  std::vector<float> sinks(static_cast<std::size_t>(pool.size()) * 16);
  constexpr std::int64_t rounds = 20'000'000 / 4;
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread) {
      operations[static_cast<std::size_t>(thread) * 8] = loop(rounds, sinks[static_cast<std::size_t>(thread) * 16]);
    });
    const double seconds = seconds_since(start);
    double total = 0;
    for (int thread = 0; thread < pool.size(); ++thread) total += operations[static_cast<std::size_t>(thread) * 8];
    best = std::max(best, total / seconds);
  }
  volatile float keep = 0;
  for (const float sink : sinks) keep = keep + sink;
  return best;
}

std::int64_t last_cache_bytes() {
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    const long bytes = ::sysconf(level);
    if (bytes > 0) return bytes;
  }
  return 0;
}

}  // namespace m3::ops
