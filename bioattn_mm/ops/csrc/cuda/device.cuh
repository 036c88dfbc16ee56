// What a warp does together: small matrix products and sums, in the layout of the tensor cores.
//
// Matrices are spread over a warp as mma.sync expects. With g = lane / 4 and t = lane % 4, a lane holds
//   of an accumulator (16 x 8): rows g and g + 8 at columns 2t and 2t + 1, as c[0], c[1] and c[2], c[3];
//   of a left factor (16 x 8 for each step): rows g and g + 8 at columns 2t and 2t + 1, as pairs a[0] and a[1];
//   of a right factor (8 x 8 for each step): column g at rows 2t and 2t + 1, as one pair.
// An accumulator rounded to pairs therefore is a left factor, and a lane always has the same two of eight channels.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cuda_runtime.h>

#include <cstdint>

namespace bioattn_mm {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Memory that the threads of a block share, as large as the launch says.
__device__ __forceinline__ char* block_memory() {
  extern __shared__ __align__(16) char shared_memory[];
  return shared_memory;
}

// Two neighbours in memory, loaded and stored at once.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T x, y;
};

template <typename T>
__device__ __forceinline__ Pair<T> load_pair(const T* address) {
  return *reinterpret_cast<const Pair<T>*>(address);
}

template <typename T>
__device__ __forceinline__ Pair<T> make_pair(float x, float y) {
  return {static_cast<T>(x), static_cast<T>(y)};
}

template <typename T>
__device__ __forceinline__ float dot(const Pair<T>& a, const Pair<T>& b) {
  return static_cast<float>(a.x) * static_cast<float>(b.x) + static_cast<float>(a.y) * static_cast<float>(b.y);
}

// Sum and maximum over the four lanes of a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float exponential(float x) { return exp2f(x * 1.44269504f); }

// Defined on the command line, too, where the kernels are compiled for something else than a GPU.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define BIOATTN_TENSOR_CORES
#endif

#ifdef BIOATTN_TENSOR_CORES

template <typename T>
__device__ __forceinline__ uint32_t bits(const Pair<T>& pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// c (16 x 8) += a (16 x 8) b (8 x 8) on the tensor cores. Volatile, because all lanes must execute it together: the
// compiler must not move it into a branch that some of them do not take.
__device__ __forceinline__ void multiply_add(float (&c)[4], const Pair<c10::Half> (&a)[2], const Pair<c10::Half>& b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(b)));
}

__device__ __forceinline__ void multiply_add(
    float (&c)[4], const Pair<c10::BFloat16> (&a)[2], const Pair<c10::BFloat16>& b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(b)));
}

// The same, a step of sixteen at once: twice the rate of two steps of eight.
__device__ __forceinline__ void multiply_add(
    float (&c)[4], const Pair<c10::Half> (&a)[2], const Pair<c10::Half> (&next_a)[2], const Pair<c10::Half>& b,
    const Pair<c10::Half>& next_b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(next_a[0])), "r"(bits(next_a[1])), "r"(bits(b)),
        "r"(bits(next_b)));
}

__device__ __forceinline__ void multiply_add(
    float (&c)[4], const Pair<c10::BFloat16> (&a)[2], const Pair<c10::BFloat16> (&next_a)[2],
    const Pair<c10::BFloat16>& b, const Pair<c10::BFloat16>& next_b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(next_a[0])), "r"(bits(next_a[1])), "r"(bits(b)),
        "r"(bits(next_b)));
}

// float32 as two tf32 parts each: three products keep all but about 2^-22 of the result. The high part is rounded to
// nearest, ties away from zero: the tensor core itself cuts bits off, which would make every product a little smaller.
// A NaN may lose its bits in the high part, and stays in the low one. The tensor core counts the summed dimension t,
// t + 4; here these are the neighbours 2t, 2t + 1 in both factors, which is the same sum.
__device__ __forceinline__ void multiply_add(float (&c)[4], const Pair<float> (&a)[2], const Pair<float>& b) {
  const auto high = [](float x) { return (__float_as_uint(x) + 0x1000u) & 0xffffe000u; };
  const auto low = [&](float x) { return __float_as_uint(x - __uint_as_float(high(x))); };
  const auto product = [&](const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  };
  const uint32_t high_a[4] = {high(a[0].x), high(a[1].x), high(a[0].y), high(a[1].y)};
  const uint32_t low_a[4] = {low(a[0].x), low(a[1].x), low(a[0].y), low(a[1].y)};
  const uint32_t high_b[2] = {high(b.x), high(b.y)}, low_b[2] = {low(b.x), low(b.y)};
  product(low_a, high_b);
  product(high_a, low_b);
  product(high_a, high_b);
}

#else

// Before compute capability 8.0, in ordinary arithmetic: a row's factors come from its four lanes. Not inlined, because
// a kernel has up to a hundred of these.
template <typename T>
__device__ __noinline__ void multiply_add(float (&c)[4], const Pair<T> (&a)[2], const Pair<T>& b) {
  const int lane = threadIdx.x % kLanes, quad = lane & ~3, column = lane % 4 * 2;
  const auto from = [](const T& x, int source) { return __shfl_sync(kAllLanes, static_cast<float>(x), source); };
#pragma unroll 1
  for (int t = 0; t < 4; ++t) {
    const float upper_x = from(a[0].x, quad + t), upper_y = from(a[0].y, quad + t);
    const float lower_x = from(a[1].x, quad + t), lower_y = from(a[1].y, quad + t);
    for (int n = 0; n < 2; ++n) {
      const float b_x = from(b.x, (column + n) * 4 + t), b_y = from(b.y, (column + n) * 4 + t);
      c[n] += upper_x * b_x + upper_y * b_y;
      c[2 + n] += lower_x * b_x + lower_y * b_y;
    }
  }
}

#endif

// c (16 x 8) += a (16 x 8 kSteps) b (8 kSteps x 8); `b(step)` gives the right factor of a step.
template <int kSteps, typename T, typename Right>
__device__ __forceinline__ void multiply_add_steps(float (&c)[4], const Pair<T> (&a)[kSteps][2], const Right& b) {
  int step = 0;
#ifdef BIOATTN_TENSOR_CORES
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (; step + 1 < kSteps; step += 2) multiply_add(c, a[step], a[step + 1], b(step), b(step + 1));
  }
#endif
#pragma unroll
  for (; step < kSteps; ++step) multiply_add(c, a[step], b(step));
}

// One of many products that add up to `sums`. Tensor cores round every sum toward zero: over hundreds of products that
// is more than float32 should lose. There each product is summed by itself, and added with rounding to nearest.
template <int kSteps, typename T, typename Right>
__device__ __forceinline__ void add_product(float (&sums)[4], const Pair<T> (&a)[kSteps][2], const Right& b) {
  if constexpr (sizeof(T) == 2) {
    multiply_add_steps<kSteps>(sums, a, b);
  } else {
    float product[4] = {};
    multiply_add_steps<kSteps>(product, a, b);
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[k] += product[k];
  }
}

}  // namespace bioattn_mm
