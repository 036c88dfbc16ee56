// As much of CUDA as the kernels use, to run their own source on a CPU. Shows what a kernel computes, not how fast.
#pragma once

#include "fibers.h"
#include "memory.h"
#include "ptx.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

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

extern dim3 threadIdx, blockIdx, gridDim;

#define __syncthreads() cuda_on_cpu::sync_block(__FILE__, __LINE__)
#define __syncwarp() cuda_on_cpu::sync_warp(__FILE__, __LINE__)

inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }

inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t __cvta_generic_to_shared(const void* pointer) { return cuda_on_cpu::shared_address(pointer); }

inline float __shfl_sync(unsigned, float value, int lane) {
  return cuda_on_cpu::exchange({{value}})[2 * lane].numbers[0];
}

inline float __shfl_xor_sync(unsigned mask, float value, int difference) {
  return __shfl_sync(mask, value, threadIdx.x % cuda_on_cpu::kWarpSize ^ difference);
}

inline int __shfl_xor_sync(unsigned mask, int value, int difference) {
  const float bits = __uint_as_float(static_cast<uint32_t>(value));
  return static_cast<int>(__float_as_uint(__shfl_xor_sync(mask, bits, difference)));
}

inline double __shfl_xor_sync(unsigned mask, double value, int difference) {
  int halves[2];
  memcpy(halves, &value, sizeof value);
  for (int& half : halves) half = __shfl_xor_sync(mask, half, difference);
  memcpy(&value, halves, sizeof value);
  return value;
}

template <typename T>
T atomicAdd(T* address, T value) {
  return std::exchange(*address, *address + value);
}

inline unsigned __ballot_sync(unsigned, bool value) {
  const cuda_on_cpu::Slot* const slots = cuda_on_cpu::exchange({{value ? 1.0f : 0.0f}});
  unsigned ballot = 0;
  for (int lane = 0; lane < cuda_on_cpu::kWarpSize; ++lane)
    if (slots[2 * lane].numbers[0]) ballot |= 1u << lane;
  return ballot;
}

inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == ~0u; }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
