// Times of the CUDA backend's operations at M3's true sizes, each beside the limit that the same run measured: reading
// for decode, matrix products for prefill. Decode runs as a recorded pass over operands that rotate past the L2.
// gpu_bench [--filter GROUP] [--only TEXT] [--seconds S]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "bench/gpu/bench.h"
#include "src/ops/cuda/cuda_backend.h"
#include "src/ops/cuda/machine_limits.h"

namespace {

using namespace m3::gpu_bench;

struct Group {
  const char* name;
  void (*run)(Bench&);
};
constexpr Group groups[] = {{"linear", bench_linear},       {"experts", bench_experts}, {"select", bench_select},
                            {"attention", bench_attention}, {"small", bench_small},     {"finish", bench_finish},
                            {"sample", bench_sample},       {"vision", bench_vision},   {"upload", bench_upload}};

}  // namespace

int main(int argc, char** argv) {
  std::string filter, only;
  double seconds = 0.03;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
      filter = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc && std::atof(argv[i + 1]) > 0) {
      seconds = std::atof(argv[++i]);
    } else {
      std::fprintf(
          stderr,
          "gpu_bench [--seconds S of each time] [--only TEXT of decode's rows, products and attention] [--filter "
          "linear|experts|select|attention|small|finish|sample|vision|upload]\n");
      return 2;
    }
  }
  const auto is_wanted = [&](const Group& group) { return filter.empty() || filter == group.name; };
  if (std::ranges::none_of(groups, is_wanted)) {
    std::fprintf(stderr, "gpu_bench: no group is called %s; gpu_bench --help lists them\n", filter.c_str());
    return 2;
  }
  if (const std::string reason = m3::ops::cuda::no_device_reason(); !reason.empty()) {
    std::fprintf(stderr, "gpu_bench: %s\n", reason.c_str());
    return 1;
  }
  std::string failed;
  bool any_wanted = only.empty();
  try {
    Bench bench(seconds, only);
    bench.read_rate = m3::ops::cuda::measure_read_bandwidth();
    bench.matmul_rate = m3::ops::cuda::measure_matmul_peak();
    std::printf("%s\nreading %.2f TB/s, bf16 products %.0f TFLOP/s%s\n", bench.backend->description().c_str(),
                bench.read_rate * 1e-12, bench.matmul_rate * 1e-12,
                bench.matmul_rate == 0 ? " (no cuBLAS here: shares are of 788)" : "");
    if (bench.matmul_rate == 0) bench.matmul_rate = 788e12;
    for (const Group& group : groups) {
      if (!is_wanted(group)) continue;
      try {
        group.run(bench);
      } catch (const std::exception& error) {
        std::printf("%s: FAILED: %s\n", group.name, error.what());
        failed += std::string(" ") + group.name;
        bench.clear();
      }
    }
    any_wanted = any_wanted || bench.any_wanted();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
  if (!any_wanted) {
    std::fprintf(stderr, "gpu_bench: no row of linear, experts, select or attention has '%s' in it\n", only.c_str());
    return 2;
  }
  if (failed.empty()) return 0;
  std::fprintf(stderr, "gpu_bench: failed:%s; the lines with FAILED say how\n", failed.c_str());
  return 1;
}
