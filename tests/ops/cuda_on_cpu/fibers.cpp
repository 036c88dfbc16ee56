#include "fibers.h"

#include "cuda_runtime.h"
#include "memory.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <vector>

dim3 threadIdx, blockIdx, gridDim;

namespace cuda_on_cpu {
namespace {

constexpr size_t kStack = 1 << 18;

struct Fiber {
  Thread thread;
  ucontext_t start;
  jmp_buf resume;
  bool started;
  int turn;  // which of its two slots is next
};

struct Barrier {
  std::vector<int> waiting;
};

// Kept from one kernel to the next: stacks are large.
struct Block {
  char* stacks = static_cast<char*>(
      mmap(nullptr, kMaxThreads* kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::vector<Fiber> fibers = std::vector<Fiber>(kMaxThreads);
  std::vector<Slot> slots = std::vector<Slot>(2 * kMaxThreads);
  std::vector<Barrier> warps = std::vector<Barrier>(kMaxWarps);
  Barrier all;
  std::vector<int> ready;
  int threads = 0, unfinished = 0, current = 0;
  bool running = false;
  uint64_t first_interval = 0, next_interval = 1;
  const std::function<void()>* kernel = nullptr;
  jmp_buf finished;
  std::string fault;
};

Block block;
std::mt19937 order(0);
std::string left_out;  // "file.cu:line" of a barrier
int64_t number_of_launches = 0;

Fiber& fiber() { return block.fibers[block.current]; }

void run_kernel();

// Goes on with a thread that waits for nothing.
[[noreturn]] void switch_to_next() {
  if (block.unfinished == 0) _longjmp(block.finished, 1);
  if (block.ready.empty()) fail(std::to_string(block.unfinished) + " threads wait for others that never come");
  const size_t drawn = order() % block.ready.size();
  block.current = block.ready[drawn];
  block.ready[drawn] = block.ready.back();
  block.ready.pop_back();
  threadIdx.x = block.current;
  Fiber& next = fiber();
  if (next.started) _longjmp(next.resume, 1);
  next.started = true;
  getcontext(&next.start);
  next.start.uc_stack.ss_sp = block.stacks + block.current * kStack;
  next.start.uc_stack.ss_size = kStack;
  makecontext(&next.start, run_kernel, 0);
  setcontext(&next.start);
  __builtin_unreachable();
}

void run_kernel() {
  (*block.kernel)();
  --block.unfinished;
  switch_to_next();
}

void wait(Barrier& barrier, size_t count) {
  if (barrier.waiting.size() + 1 == count) {
    block.ready.insert(block.ready.end(), barrier.waiting.begin(), barrier.waiting.end());
    barrier.waiting.clear();
    return;
  }
  barrier.waiting.push_back(block.current);
  if (_setjmp(fiber().resume) == 0) switch_to_next();
}

bool is_left_out(const char* file, int line) {
  if (left_out.empty()) return false;
  const std::string path(file);
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(line) == left_out;
}

void run_block() {
  block.first_interval = block.next_interval;
  block.unfinished = block.threads;
  block.ready.clear();
  block.all.waiting.clear();
  for (Barrier& warp : block.warps) warp.waiting.clear();
  for (int i = 0; i < block.threads; ++i) {
    Fiber& fiber = block.fibers[i];
    fiber.thread = {i, i / kWarpSize, {block.first_interval, 0}};
    fiber.started = false, fiber.turn = 0;
    block.ready.push_back(i);
  }
  if (_setjmp(block.finished) == 0) switch_to_next();
  for (int i = 0; i < block.threads; ++i)
    block.next_interval = std::max(block.next_interval, block.fibers[i].thread.time.interval + 1);
}

}  // namespace

const Thread* current_thread() { return block.running ? &fiber().thread : nullptr; }

uint64_t first_interval() { return block.first_interval; }

int64_t launches() { return number_of_launches; }

void fail(const std::string& message) {
  block.fault = message;
  _longjmp(block.finished, 1);
}

void run(unsigned x, unsigned y, unsigned z, int threads, const std::function<void()>& kernel) {
  if (threads % kWarpSize || threads > kMaxThreads) throw std::invalid_argument("whole warps, at most 256 threads");
  ++number_of_launches;
  const SegmentationFaults segmentation_faults;
  block.threads = threads, block.kernel = &kernel, block.fault.clear(), block.running = true;
  gridDim = dim3(x, y, z);
  for (blockIdx.z = 0; blockIdx.z < z && block.fault.empty(); ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < y && block.fault.empty(); ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < x && block.fault.empty(); ++blockIdx.x) {
        poison_shared_memory();
        run_block();
      }
  block.running = false;
  if (!block.fault.empty()) throw std::runtime_error(block.fault);
}

void sync_block(const char* file, int line) {
  if (is_left_out(file, line)) return;
  wait(block.all, block.threads);
  ++fiber().thread.time.interval;
}

void sync_warp(const char* file, int line) {
  if (is_left_out(file, line)) return;
  meet_warp();
  ++fiber().thread.time.warp_step;
}

void meet_warp() { wait(block.warps[fiber().thread.warp], kWarpSize); }

const Slot* exchange(const Slot& mine) {
  const int turn = fiber().turn ^= 1, first = fiber().thread.warp * kWarpSize;
  block.slots[2 * block.current + turn] = mine;
  meet_warp();
  return &block.slots[2 * first + turn];
}

void set_order(uint64_t seed) { order.seed(seed); }

void leave_out_barrier(const std::string& place) { left_out = place; }

}  // namespace cuda_on_cpu
