// How much of a pass the GPU spends between kernels: a library that the CUDA driver loads into a program
// (CUDA_INJECTION64_PATH), writes down when each kernel began and ended (CUPTI's activity records) and prints a table to
// stderr at the program's end. scripts/gpu.sh gaps builds and uses it.
//
// A kernel that was launched ahead (programmatic dependent launch) is counted from the moment in which its first block
// starts, also while that waits for the kernel before it: a gap is time in which no kernel was on the GPU at all.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Kernel {
  std::uint64_t start;  // ns
  std::uint64_t end;
  const char* name;  // CUPTI's, for the program's life
};
using Kernels = std::vector<Kernel>;

std::mutex mutex;
std::map<std::uint32_t, std::map<std::uint32_t, Kernels>> graphs;  // by graph and launch of it
Kernels singles;                                                   // launched one by one

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* why = nullptr;
  cuptiGetResultString(result, &why);
  std::fprintf(stderr, "kernel_gaps: %s: %s\n", what, why == nullptr ? "unknown error" : why);
  std::exit(1);
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, *size));
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    Kernels& into = kernel.graphId == 0 ? singles : graphs[kernel.graphId][kernel.correlationId];
    into.push_back({kernel.start, kernel.end, kernel.name});
  }
  std::free(buffer);
}

// Of kernels in order of their starts.
struct Run {
  std::uint64_t span = 0;                       // from the first start to the last end, ns
  std::uint64_t gaps = 0;                       // of it without any kernel
  std::map<std::string, std::uint64_t> before;  // the same by the kernel that ended them
};

Run measure(Kernels kernels) {
  std::ranges::sort(kernels, {}, &Kernel::start);
  Run run;
  std::uint64_t end = kernels.front().start;
  for (const Kernel& kernel : kernels) {
    if (kernel.start > end) {
      run.gaps += kernel.start - end;
      run.before[kernel.name] += kernel.start - end;
    }
    end = std::max(end, kernel.end);
  }
  run.span = end - kernels.front().start;
  return run;
}

std::uint64_t median(std::vector<std::uint64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void print_row(const char* what, std::size_t passes, std::size_t kernels, const std::vector<Run>& runs) {
  std::vector<std::uint64_t> spans;
  std::vector<std::uint64_t> gaps;
  std::map<std::string, std::uint64_t> before;
  for (const Run& run : runs) {
    spans.push_back(run.span);
    gaps.push_back(run.gaps);
    for (const auto& [name, gap] : run.before) before[name] += gap;
  }
  const double span = static_cast<double>(median(spans)) / 1e3;
  const double gap = static_cast<double>(median(gaps)) / 1e3;
  std::fprintf(stderr, "%-16s %6zu x %4zu kernels  %10.1f us  gaps %8.1f us  %5.2f %%", what, passes, kernels, span,
               gap, 100 * gap / span);
  const auto worst = std::ranges::max_element(before, {}, [](const auto& one) { return one.second; });
  if (worst != before.end()) {
    std::fprintf(stderr, "  most before %.60s (%.1f us)", worst->first.c_str(),
                 static_cast<double>(worst->second) / 1e3 / static_cast<double>(runs.size()));
  }
  std::fputc('\n', stderr);
}

// Kernels launched one by one belong together where less than a millisecond lies between them.
std::vector<Kernels> cut(Kernels kernels) {
  constexpr std::uint64_t apart = 1000000;
  std::ranges::sort(kernels, {}, &Kernel::start);
  std::vector<Kernels> result;
  std::uint64_t end = 0;
  for (const Kernel& kernel : kernels) {
    if (result.empty() || kernel.start > end + apart) result.emplace_back();
    result.back().push_back(kernel);
    end = std::max(end, kernel.end);
  }
  return result;
}

void print() {
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "collecting the records");
  const std::lock_guard lock(mutex);
  std::fputs("passes and the time in them without a kernel (medians)\n", stderr);
  for (const auto& [graph, launches] : graphs) {
    std::vector<Run> runs;
    std::vector<std::uint64_t> between;
    std::uint64_t last_end = 0;
    std::map<std::uint64_t, std::uint64_t> ends;  // by start
    for (const auto& [launch, kernels] : launches) {
      runs.push_back(measure(kernels));
      const std::uint64_t start = std::ranges::min(kernels, {}, &Kernel::start).start;
      ends[start] = start + runs.back().span;
    }
    for (const auto& [start, end] : ends) {
      if (last_end != 0) between.push_back(start > last_end ? start - last_end : 0);
      last_end = end;
    }
    print_row(("graph " + std::to_string(graph)).c_str(), launches.size(), launches.begin()->second.size(), runs);
    if (!between.empty()) {
      std::fprintf(stderr, "%-16s %.1f us\n", "  to the next", static_cast<double>(median(between)) / 1e3);
    }
  }
  for (const Kernels& kernels : cut(std::exchange(singles, {}))) {
    if (kernels.size() < 50) continue;  // single operations: limits, uploads
    print_row("one by one", 1, kernels.size(), {measure(kernels)});
  }
}

}  // namespace

// The driver's entry.
extern "C" int InitializeInjection() {
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "registering");
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "asking for the records of kernels");
  return std::atexit(print) == 0 ? 1 : 0;
}
