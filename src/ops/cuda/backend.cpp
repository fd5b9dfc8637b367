#include "src/ops/cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/cuda_backend.h"
#include "src/ops/cuda/fill_random.h"
#include "src/ops/cuda/matmul_narrow_sm90.h"
#include "src/ops/cuda/upload.h"

namespace m3::ops::cuda {

namespace {

constexpr int oldest_major = 8;  // tensor cores with bf16, asynchronous copies

constexpr std::size_t large_copy = std::size_t{1} << 20;
constexpr std::size_t download_part = std::size_t{8} << 20;
constexpr std::size_t upload_part = std::size_t{4} << 20;

// Graphs kept for passes: a server's batch sizes with their steps of context lengths are some hundred; each graph holds
// some 650 launches.
constexpr std::ptrdiff_t most_graphs = 256;

std::atomic<bool> one_meets = false;

}  // namespace

std::string no_device_reason() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    // Without any driver its version reads as 0, which counts as too old.
    int driver = 0;
    const bool none =
        error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    if (none || error == cudaErrorNoDevice) return "no GPU or driver was found";
    return fmt::format("no GPU can be used: {}", cudaGetErrorString(error));
  }
  if (count == 0) return "this machine has no GPU";
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return "the GPU does not answer";
  if (properties.major < oldest_major) {
    return fmt::format("the GPU ({}, compute capability {}.{}) is older than 8.0", properties.name, properties.major,
                       properties.minor);
  }
  return "";
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options, ThreadPool& pool) {
  if (const std::string reason = no_device_reason(); !reason.empty()) fail_resource("{}", reason);
  return std::make_unique<CudaBackend>(options, pool);
}

CudaBackend::CudaBackend(const BackendOptions& options, ThreadPool& pool)
    : pool_(pool), deterministic_(options.deterministic) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU's properties");
  device_name_ = fmt::format("{}, {} multiprocessors, sm_{}{}", properties.name, properties.multiProcessorCount,
                             properties.major, properties.minor);
  shared_bytes_ = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for the priorities of streams");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, options.background ? lowest : highest),
        "creating a stream");
  check(cudaEventCreateWithFlags(&sampled_event_, cudaEventDisableTiming), "creating an event");
  // Processes that share the GPU at the same time (MPS) could hold each other's multiprocessors for ever.
  int device = 0, shared = 0;
  check(cudaGetDevice(&device), "asking for the GPU in use");
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, device), "asking whether the GPU is shared");
  meets_ = !options.background && shared == 0 && !one_meets.exchange(true);
}

CudaBackend::~CudaBackend() {
  drop_pass();
  cudaStreamSynchronize(stream_);
  if (meets_) one_meets = false;
  drop_recordings();
  cudaFreeHost(results_);
  cudaEventDestroy(sampled_event_);
  cudaStreamDestroy(stream_);
}

std::string CudaBackend::description() const { return fmt::format("cuda ({})", device_name_); }

Memory CudaBackend::allocate(std::int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail_resource("the GPU has no {} left: {} are free", human_bytes(bytes), human_bytes(memory_state().free_bytes));
  }
  check(error, "allocating GPU memory");
  return {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes),
          [](std::byte* data, std::size_t) { cudaFree(data); }};
}

MemoryState CudaBackend::memory_state() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
  return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

// In parts: one is on its way while the next is copied to pinned memory, of which little is needed.
void CudaBackend::upload(std::byte* to, std::span<const std::byte> from) {
  for (std::size_t at = 0; at < from.size(); at += upload_part) {
    const std::size_t bytes = std::min(upload_part, from.size() - at);
    copy(staging_.begin(bytes), from.data() + at, bytes);
    staging_.send(to + at, bytes, stream_);
  }
}

void CudaBackend::upload(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress) {
  upload_all(transfers, progress);
}

// By all threads, where one would be slower than the bus.
void CudaBackend::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes < large_copy) {
    std::memcpy(to, from, bytes);
    return;
  }
  constexpr std::int64_t grain = 1 << 16;
  pool_.split(static_cast<std::int64_t>(bytes), grain, [&](std::int64_t begin, std::int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

void CudaBackend::download(std::span<std::byte> to, const std::byte* from) {
  if (to.size() >= large_copy) {  // in parts: one is on its way while the one before is copied on
    std::size_t queued = 0;
    int slots[2] = {};
    const auto queue = [&](int part) {
      const std::size_t bytes = std::min(download_part, to.size() - queued);
      if (bytes > 0) slots[part % 2] = landing_.fetch(from + queued, bytes, stream_);
      queued += bytes;
    };
    queue(0);
    for (std::size_t at = 0; at < to.size(); at += download_part) {
      const auto part = static_cast<int>(at / download_part);
      queue(part + 1);
      copy(to.data() + at, landing_.take(slots[part % 2]), std::min(download_part, to.size() - at));
    }
    return;
  }
  if (!to.empty()) {
    check(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_), "a copy from the GPU");
  }
  synchronize();
}

void CudaBackend::synchronize() { check(cudaStreamSynchronize(stream_), "waiting for the GPU"); }

bool CudaBackend::idle() const {
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state == cudaErrorNotReady) return false;
  check(state, "asking the GPU whether it is done");
  return true;
}

void CudaBackend::fill_random(std::span<std::byte> to, const RandomFill& fill) { cuda::fill_random(to, fill, stream_); }

// Passes. The first of a key runs as it is: it loads kernels and makes the tables of experts. The second is recorded,
// the rest are played.
bool CudaBackend::begin_pass(std::uint64_t key) {
  recording_ = 0;
  if (key == 0) return false;
  Recording& recording = recordings_[key];
  if (recording.graph != nullptr) {
    recording.played = ++plays_;
    check(cudaGraphLaunch(recording.graph, stream_), "playing a pass again");
    return true;
  }
  if (recording.passes++ == 0) return false;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a pass");
  recording_ = key;
  return false;
}

void CudaBackend::end_pass() {
  if (recording_ == 0) return;
  const std::uint64_t key = std::exchange(recording_, 0);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "recording a pass");
  if (std::ranges::count_if(recordings_, [](const auto& one) { return one.second.graph != nullptr; }) >= most_graphs) {
    drop_oldest();
  }
  cudaGraphExec_t playable = nullptr;
  cudaError_t error = cudaGraphInstantiate(&playable, graph, 0);
  if (error == cudaErrorMemoryAllocation) {  // what the others hold may be enough for this one
    cudaGetLastError();
    cudaStreamSynchronize(stream_);
    drop_recordings();
    error = cudaGraphInstantiate(&playable, graph, 0);
  }
  cudaGraphDestroy(graph);
  check(error, "making a graph of a pass");
  recordings_[key] = {.graph = playable, .passes = 2, .played = ++plays_};
  check(cudaGraphLaunch(playable, stream_), "running a recorded pass");
}

void CudaBackend::drop_pass() {
  if (recording_ == 0) return;
  recording_ = 0;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
}

// A graph that is being played ends first: CUDA sees to it.
void CudaBackend::drop_oldest() {
  const auto oldest = std::ranges::min_element(recordings_, {}, [](const auto& one) {
    return one.second.graph == nullptr ? std::numeric_limits<std::uint64_t>::max() : one.second.played;
  });
  cudaGraphExecDestroy(oldest->second.graph);
  recordings_.erase(oldest);
}

void CudaBackend::drop_recordings() {
  for (auto& [key, recording] : recordings_) {
    if (recording.graph != nullptr) cudaGraphExecDestroy(recording.graph);
  }
  recordings_.clear();
}

// A counter for each token and tile of heads that one launch takes; what products of few items share at least.
static std::int64_t counters_for(const Limits& limits) {
  const std::int64_t tiles =
      std::clamp<std::int64_t>(limits.tokens, 1, 4096) * std::max<std::int64_t>(limits.query_heads, 2);
  return std::max<std::int64_t>(tiles, narrow_counters);
}

static std::int64_t partials_for(const Limits& limits) {
  return narrow_partial_floats(std::max(limits.tokens, limits.logits_rows));
}

std::int64_t CudaBackend::persistent_bytes(const Limits& limits) const {
  Arena arena;
  arena.take<unsigned>(counters_for(limits));
  arena.take<float>(partials_for(limits));
  arena.take<std::byte>(limits.logits_rows * 5);
  arena.take<std::uint32_t>(limits.logits_rows * limits.vocab);
  return arena.used();
}

std::int64_t CudaBackend::workspace_bytes(const Limits& limits) const {
  const std::int64_t vision = vision_scratch_bytes(limits);
  if (limits.tokens == 0) return persistent_bytes(limits) + vision + 64;
  const std::int64_t select =
      std::max(4 * select_score_floats(limits.tokens, limits.kv_heads, limits.context),
               select_prefill_workspace_bytes_sm90(limits.tokens, limits.sequences, static_cast<int>(limits.kv_heads)));
  std::int64_t attend =
      attend_workspace_bytes(limits.tokens, limits.query_heads, limits.kv_heads, limits.context, limits.topk_blocks);
  if (!deterministic_) {
    attend = std::max({attend, attend_dense_sm90_bytes(limits.tokens), attend_decode_sm90_bytes(),
                       attend_sparse_sm90_bytes(limits.tokens, limits.kv_heads, limits.topk_blocks, limits.sequences,
                                                limits.context)});
  }
  return persistent_bytes(limits) +
         std::max({select, attend, matmul_scratch_bytes(limits), experts_scratch_bytes(limits), vision}) + 64;
}

void CudaBackend::bind_workspace(std::span<std::byte> workspace, const Limits& limits) {
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0)
    fail_internal("the workspace is not 64-byte aligned");
  const std::int64_t needed = workspace_bytes(limits);
  if (std::ssize(workspace) < needed) {
    fail_internal("a workspace of {} bytes was bound where {} are needed", workspace.size(), needed);
  }
  synchronize();
  drop_recordings();
  limits_ = limits;
  Arena arena(workspace);
  counters_size_ = counters_for(limits);
  counters_ = arena.take<unsigned>(counters_size_);
  partials_ = arena.take<float>(partials_for(limits));
  auto* const results = arena.take<std::byte>(limits.logits_rows * 5);  // ids, then flags
  sampled_ = reinterpret_cast<std::int32_t*>(results);
  finite_ = reinterpret_cast<std::uint8_t*>(results + limits.logits_rows * 4);
  token_counts_ = arena.take<std::uint32_t>(limits.logits_rows * limits.vocab);
  scratch_ = workspace.subspan(static_cast<std::size_t>(arena.used()));
  check(cudaMemsetAsync(counters_, 0, static_cast<std::size_t>(counters_size_) * sizeof(unsigned), stream_),
        "clearing counters");
  const auto counts = static_cast<std::size_t>(limits.logits_rows * limits.vocab) * sizeof(std::uint32_t);
  check(cudaMemsetAsync(token_counts_, 0, counts, stream_), "clearing the sampler's counts");
}

template <typename T>
const T* CudaBackend::stage(std::span<const T> values, DeviceBuffer& to) {
  std::byte* device = to.reserve(values.size_bytes());
  upload(device, std::as_bytes(values));
  return reinterpret_cast<const T*>(device);
}

template const std::int32_t* CudaBackend::stage(std::span<const std::int32_t>, DeviceBuffer&);

void CudaBackend::copy_pages(const PagePart& part, std::span<const std::int32_t> from,
                             std::span<const std::int32_t> to) {
  if (from.size() != to.size()) fail_internal("copy_pages: {} pages to {}", from.size(), to.size());
  if (from.empty()) return;
  const std::int32_t* sources = stage(from, page_lists_[0]);
  const std::int32_t* targets = stage(to, page_lists_[1]);
  check(launch_copy_pages(part, sources, targets, static_cast<int>(from.size()), stream_), "copy_pages");
}

}  // namespace m3::ops::cuda
