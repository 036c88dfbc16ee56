// Enough of CUDA to run the kernels' own source on a CPU: every thread of a block is a fiber, blocks follow one
// another, and warp and block barriers hand over to the next fiber. Shows what a kernel computes, not how fast.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cuda_on_cpu {

constexpr int kLanes = 32;
constexpr size_t kStack = 1 << 18;

struct Barrier {
  int arrived = 0, generation = 0;
};

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  bool started = false, done = false;
  dim3 thread;
  std::vector<char> stack = std::vector<char>(kStack);
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Barrier> warp_barriers;
  std::vector<float> exchanged;  // two slots a lane, used in turn
  std::vector<int> turn;
  Barrier barrier;
  dim3 block, grid;
  size_t current = 0, running = 0;
  std::function<void()> kernel;
  jmp_buf finished;
};

inline Block* block;

inline Fiber& fiber() { return block->fibers[block->current]; }

inline void run_fiber();

// Continues with the next fiber that has not finished.
inline void next_fiber() {
  do {
    block->current = (block->current + 1) % block->fibers.size();
  } while (fiber().done);
  if (fiber().started) _longjmp(fiber().resume, 1);
  fiber().started = true;
  setcontext(&fiber().start);
}

inline void yield() {
  if (_setjmp(fiber().resume) == 0) next_fiber();
}

inline void run_fiber() {
  block->kernel();
  fiber().done = true;
  if (--block->running == 0) _longjmp(block->finished, 1);
  next_fiber();
}

inline void wait(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (barrier.generation == generation) yield();
}

inline void wait_for_warp() { wait(block->warp_barriers[block->current / kLanes], kLanes); }

inline float exchange(float value, int source_lane) {
  const size_t thread = block->current, first = thread / kLanes * kLanes;
  const int turn = block->turn[thread] ^= 1;
  block->exchanged[2 * thread + turn] = value;
  wait_for_warp();
  return block->exchanged[2 * (first + source_lane) + turn];
}

inline void run(dim3 grid, int threads, const std::function<void()>& kernel) {
  if (threads % kLanes) throw std::invalid_argument("whole warps only");
  Block state;
  state.fibers.resize(threads);
  state.grid = grid;
  state.kernel = kernel;
  block = &state;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        state.block = dim3(x, y, z);
        state.barrier = {};
        state.warp_barriers.assign(threads / kLanes, {});
        state.exchanged.assign(2 * threads, 0);
        state.turn.assign(threads, 0);
        state.running = threads;
        for (int i = 0; i < threads; ++i) {
          Fiber& fiber = state.fibers[i];
          fiber.started = fiber.done = false;
          fiber.thread = dim3(i);
          getcontext(&fiber.start);
          fiber.start.uc_stack.ss_sp = fiber.stack.data();
          fiber.start.uc_stack.ss_size = fiber.stack.size();
          makecontext(&fiber.start, run_fiber, 0);
        }
        state.current = threads - 1;
        if (_setjmp(state.finished) == 0) next_fiber();
      }
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::fiber().thread)
#define blockIdx (cuda_on_cpu::block->block)
#define gridDim (cuda_on_cpu::block->grid)

inline void __syncthreads() { cuda_on_cpu::wait(cuda_on_cpu::block->barrier, cuda_on_cpu::block->fibers.size()); }
inline void __syncwarp() { cuda_on_cpu::wait_for_warp(); }
inline float __shfl_sync(unsigned, float value, int lane) { return cuda_on_cpu::exchange(value, lane); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return cuda_on_cpu::exchange(value, cuda_on_cpu::block->current % cuda_on_cpu::kLanes ^ mask);
}
