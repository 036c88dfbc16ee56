// The threads of a CUDA block as fibers: each runs until it has to wait for others, then one that is ready goes on,
// drawn at random. Blocks follow one another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cuda_on_cpu {

constexpr int kWarpSize = 32, kMaxThreads = 256, kMaxWarps = kMaxThreads / kWarpSize;

// When a thread accesses memory. An interval ends at each barrier of the block, which orders the accesses of all its
// threads; a warp step ends at each barrier of the warp, which orders those of its lanes. Numbers of intervals are
// not used again in later blocks.
struct Time {
  uint64_t interval = 0;
  uint32_t warp_step = 0;
};

struct Thread {
  int number, warp;
  Time time;
};

// The thread that runs; null outside of a kernel.
const Thread* current_thread();
// The first interval of the block that runs.
uint64_t first_interval();

// Runs a kernel with all of its blocks. Throws std::runtime_error with the first fault that is found.
void run(unsigned x, unsigned y, unsigned z, int threads, const std::function<void()>& kernel);

// Number of kernels that have run so far.
int64_t launches();

// Ends the kernel that runs: `run` throws the message.
[[noreturn]] void fail(const std::string& message);

// Barriers, which a test can leave out by their place in the source.
void sync_block(const char* file, int line);
void sync_warp(const char* file, int line);
// Waits for the lanes of the warp, without any promise about their memory.
void meet_warp();

// What a lane gives to the others of its warp.
struct Slot {
  float numbers[12];
};
// Gives `mine` to the others; when all have done so, returns the slots of the warp's lanes. Lanes have two slots in
// turn, so that the next data cannot overtake these: the slot of a lane is [2 * lane].
const Slot* exchange(const Slot& mine);

// Draws the order of the threads from another seed.
void set_order(uint64_t seed);
// Leaves out the barrier at "file.cu:line"; none if that is empty.
void leave_out_barrier(const std::string& place);

}  // namespace cuda_on_cpu
