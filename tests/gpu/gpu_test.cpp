// Every operation of the CUDA backend against the scalar judge, on the GPU of this machine. Fails where there is
// none. gpu_test [--quick] [--filter NAME] [--format NAME] [--deterministic]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>

#include "src/ops/cuda/cuda_backend.h"
#include "tests/gpu/rig.h"

namespace {

using namespace m3::test::gpu;

struct Group {
  const char* name;
  void (*run)(Rig&, Results&, const Options&);
};

constexpr Group groups[] = {{"rows", test_rows},     {"linear", test_linear},       {"qkv", test_qkv},
                            {"select", test_select}, {"attention", test_attention}, {"experts", test_experts},
                            {"sample", test_sample}, {"vision", test_vision},       {"limits", test_limits},
                            {"long", test_long},     {"wide", test_wide},           {"extremes", test_extremes}};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bool deterministic = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--deterministic") == 0) {
      deterministic = true;
    } else if (std::strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
      options.filter = argv[++i];
    } else if (std::strcmp(argv[i], "--format") == 0 && i + 1 < argc) {
      options.format = argv[++i];
    } else {
      std::fprintf(stderr,
                   "gpu_test [--quick] [--deterministic] [--format mxfp4|... of experts] "
                   "[--filter rows|linear|qkv|select|attention|experts|sample|vision|limits|long|wide|extremes]\n");
      return 2;
    }
  }
  const auto is_asked = [&](m3::WeightFormat format) { return m3::weight_format_name(format) == options.format; };
  if (!options.format.empty() && std::ranges::none_of(m3::test::all_formats, is_asked)) {
    std::fprintf(stderr, "gpu_test: weights have no format '%s'\n", options.format.c_str());
    return 2;
  }
  if (const std::string reason = m3::ops::cuda::no_device_reason(); !reason.empty()) {
    std::fprintf(stderr, "gpu_test: %s\n", reason.c_str());
    return 1;
  }
  Results results;
  try {
    Rig rig(deterministic);
    std::printf("%s\n", rig->description().c_str());
    for (const Group& group : groups) {
      if (!options.filter.empty() && options.filter != group.name) continue;
      const auto begin = std::chrono::steady_clock::now();
      try {
        group.run(rig, results, options);
      } catch (const std::exception& error) {
        results.add_exact(group.name, "all", false, error.what());
      }
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      std::printf("%s: %.1f s\n", group.name, seconds.count());
    }
  } catch (const std::exception& error) {
    results.add_exact("set-up", "all", false, error.what());
  }
  return results.print() ? 0 : 1;
}
