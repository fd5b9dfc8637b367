#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "device.h"

// A switch of fibers: what the calling convention keeps, then the stack.
extern "C" void emulation_switch(void** save, void* load);
asm(R"(
.text
.globl emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");

namespace emulation {

Place* here = nullptr;

namespace {

constexpr std::size_t stack_bytes = 64 << 10;

struct Copy {
  void* to;
  const void* from;
};

struct Barrier {
  int arrived = 0;
  int size = 0;
  unsigned turn = 0;
};

struct Fiber {
  void* stack = nullptr;
  void* saved = nullptr;
  Place place;
  bool done = true;
  const Barrier* waits = nullptr;
  unsigned waits_turn = 0;
  std::deque<std::vector<Copy>> copies;  // groups; the last is open
};

std::vector<Fiber> fibers;
Fiber* current = nullptr;
void* scheduler = nullptr;
const std::function<void()>* work = nullptr;
std::vector<std::byte> shared;
Barrier block_barrier_;
Barrier warp_barriers[32];
std::uint64_t slots[32][2][32];  // by warp and parity of the exchange
unsigned exchanges[1024];        // by thread
int counted = 0;
std::mt19937 order_source(1);

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "emulation: %s, thread %u of block (%u, %u, %u)\n", what, here->thread.x, here->block.x,
               here->block.y, here->block.z);
  std::abort();
}

void yield() {
  Fiber* self = current;
  emulation_switch(&self->saved, scheduler);
}

void release(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.turn;
}

void arrive(Barrier& barrier) {
  const unsigned turn = barrier.turn;
  if (++barrier.arrived == barrier.size) {
    release(barrier);
    return;
  }
  current->waits = &barrier;
  current->waits_turn = turn;
  while (barrier.turn == turn) yield();
  current->waits = nullptr;
}

Barrier& own_warp() { return warp_barriers[here->thread.x / 32]; }

// Threads that end no longer count, as on the device.
void leave(Barrier& barrier) {
  --barrier.size;
  if (barrier.size > 0 && barrier.arrived == barrier.size) release(barrier);
}

void start() {
  (*work)();
  if (current->copies.size() > 1 || !current->copies.back().empty()) {
    for (const auto& group : current->copies) {
      for (const Copy& copy : group) std::memcpy(copy.to, copy.from, 16);
    }
  }
  current->done = true;
  leave(block_barrier_);
  leave(own_warp());
  yield();
  std::abort();
}

void run_block(unsigned threads) {
  std::vector<unsigned> order(threads);
  for (unsigned i = 0; i < threads; ++i) order[i] = i;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    if (fiber.stack == nullptr) {
      fiber.stack = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    auto* top = reinterpret_cast<void**>(static_cast<char*>(fiber.stack) + stack_bytes);
    *--top = nullptr;  // keeps the stack's alignment as after a call
    *--top = reinterpret_cast<void*>(&start);
    for (int reg = 0; reg < 6; ++reg) *--top = nullptr;
    fiber.saved = top;
    fiber.done = false;
    fiber.waits = nullptr;
    fiber.copies.assign(1, {});
    exchanges[i] = 0;
  }
  block_barrier_ = {0, static_cast<int>(threads), 0};
  for (unsigned w = 0; w < 32; ++w) {
    const unsigned left = threads > w * 32 ? threads - w * 32 : 0;
    warp_barriers[w] = {0, static_cast<int>(left < 32 ? left : 32), 0};
  }
  for (;;) {
    // Warps in turn, their lanes together, each in a fresh order.
    std::shuffle(order.begin(), order.end(), order_source);
    bool alive = false, moved = false;
    for (const unsigned i : order) {
      Fiber& fiber = fibers[i];
      if (fiber.done) continue;
      alive = true;
      if (fiber.waits != nullptr && fiber.waits->turn == fiber.waits_turn) continue;
      moved = true;
      current = &fiber;
      here = &fiber.place;
      emulation_switch(&scheduler, fiber.saved);
    }
    if (!alive) return;
    if (!moved) stop("all threads wait: a barrier that not all of them reach");
  }
}

}  // namespace

std::byte* dynamic_shared() {
  const auto at = reinterpret_cast<std::uintptr_t>(shared.data());
  return shared.data() + (128 - at % 128) % 128;
}

void block_barrier() { arrive(block_barrier_); }
void warp_barrier() { arrive(own_warp()); }

const std::uint64_t* exchange(std::uint64_t own) {
  const unsigned thread = here->thread.x;
  auto& slot = slots[thread / 32][exchanges[thread]++ % 2];
  slot[thread % 32] = own;
  warp_barrier();
  return slot;
}

int block_count(bool value) {
  block_barrier();
  if (here->thread.x == 0) counted = 0;
  block_barrier();
  counted += value ? 1 : 0;
  block_barrier();
  const int result = counted;
  block_barrier();
  return result;
}

void copy_later(void* to, const void* from) { current->copies.back().push_back({to, from}); }
void commit() { current->copies.emplace_back(); }
void wait(int pending) {
  while (static_cast<int>(current->copies.size()) - 1 > pending) {
    for (const Copy& copy : current->copies.front()) std::memcpy(copy.to, copy.from, 16);
    current->copies.pop_front();
  }
}

void run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    std::fprintf(stderr, "emulation: a launch of (%u, %u, %u) blocks of %u threads\n", grid.x, grid.y, grid.z, threads);
    std::abort();
  }
  if (fibers.size() < 1024) fibers.resize(1024);
  shared.assign(shared_bytes + 256, std::byte{0xff});
  work = &body;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        for (unsigned t = 0; t < threads; ++t) fibers[t].place = {dim3(t), dim3(x, y, z), block, grid};
        run_block(threads);
      }
    }
  }
}

namespace {
std::vector<std::function<void()>>* capture = nullptr;
}

void queue(std::function<void()> item) {
  if (capture != nullptr) {
    capture->push_back(std::move(item));
  } else {
    item();
  }
}

}  // namespace emulation

struct EmulatedGraph {
  std::vector<std::function<void()>> items;
};

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulation on the processor");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->sharedMemPerBlockOptin = 227 * 1024;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 0, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (bytes < (std::size_t{256} << 20)) std::memset(*memory, 0xff, bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return *free = std::size_t{4} << 30, *total = std::size_t{8} << 30, cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  emulation::queue([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t) {
  emulation::queue([=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                  width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (bytes > 0) emulation::queue([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) { return *lowest = *highest = 0, cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return *stream = stream, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  emulation::capture = new std::vector<std::function<void()>>;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = new EmulatedGraph{std::move(*emulation::capture)};
  delete std::exchange(emulation::capture, nullptr);
  return cudaSuccess;
}
// There is no memory for every 500th.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  static int made = 0;
  if (++made % 500 == 0) return cudaErrorMemoryAllocation;
  return *exec = new EmulatedGraph(*graph), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& item : exec->items) item();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
