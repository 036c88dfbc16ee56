// A warp computes these together, in the tensor cores' layout: small matrix products, sums, copies to shared memory.
//
// Matrices are spread over a warp as mma.sync expects. With g = lane / 4 and t = lane % 4, a lane holds:
// of an accumulator (16 x 8) rows g and g + 8 at columns 2t and 2t + 1, as c[0], c[1] and c[2], c[3];
// of a left factor (16 x 8 for each step) rows g and g + 8 at columns 2t and 2t + 1, as pairs a[0] and a[1];
// of a right factor (8 x 8 for each step) column g at rows 2t and 2t + 1, as one pair.
// An accumulator rounded to pairs is a left factor, and a lane always has the same two of eight channels.
#pragma once

#include "../tensor.h"

#include <cuda_runtime.h>

namespace bioattn_mm {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

// The compute capability that is compiled for, times 100; the emulation of a GPU defines it.
#if !defined(BIOATTN_CAPABILITY) && defined(__CUDA_ARCH__)
#define BIOATTN_CAPABILITY __CUDA_ARCH__
#elif !defined(BIOATTN_CAPABILITY)
#define BIOATTN_CAPABILITY 0  // nvcc compiles the code of the host
#endif

// Whether tensor cores multiply matrices of T: float16 since 7.5, the others since 8.0.
template <typename T>
constexpr bool kTensorCores = BIOATTN_CAPABILITY >= (std::is_same_v<T, c10::Half> ? 750 : 800);

// The memory that the threads of a block share, as large as the kernel launch says.
__device__ __forceinline__ char* block_memory() {
  extern __shared__ __align__(16) char shared_memory[];
  return shared_memory;
}

// The sum of a column of a matrix, (rows, columns), in one order: a lane of the block's kWarps warps has a column,
// each warp every kWarps-th row, and the first warp the sums.
template <int kWarps>
struct ColumnSum {
  static constexpr size_t kSharedBytes = sizeof(float[kWarps][kWarpSize]);

  __device__ __forceinline__ ColumnSum(const float* matrix, int rows, int columns)
      : column(blockIdx.x * kWarpSize + threadIdx.x % kWarpSize) {
    auto& shared = *reinterpret_cast<float (*)[kWarps][kWarpSize]>(block_memory());
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll 8
    for (int row = warp; row < rows && column < columns; row += kWarps)
      sum += matrix[int64_t(row) * columns + column];
    shared[warp][lane] = sum;
    __syncthreads();
    exists = warp == 0 && column < columns;
    if (!exists) return;
    for (int other = 1; other < kWarps; ++other) sum += shared[other][lane];
  }

  int column;
  float sum = 0;
  bool exists;  // in this thread
};

// The sum of what the lanes of a warp have, in each of them.
template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int difference = kWarpSize / 2; difference > 0; difference /= 2)
    x += __shfl_xor_sync(kFullWarp, x, difference);
  return x;
}

// Two elements that are neighbours in memory, loaded and stored at once.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T x, y;
};

// Neighbours in memory that are loaded and stored at once: sixteen bytes, the most for a lane, or fewer.
template <typename T, int kCount = 16 / sizeof(T)>
struct alignas(kCount * sizeof(T)) Chunk {
  static constexpr int kSize = kCount;
  T elements[kSize];
};

// Calls function(T()) for the dtypes that kernels compute in float32.
template <typename Function>
void for_float_dtypes(const Tensor& tensor, const Function& function) {
  dispatch<float, c10::Half, c10::BFloat16>(tensor.scalar_type(), function);
}

template <typename T>
__device__ __forceinline__ Pair<T> load_pair(const T* address) {
  return *reinterpret_cast<const Pair<T>*>(address);
}

template <typename T>
__device__ __forceinline__ Chunk<T> load_chunk(const T* address) {
  return *reinterpret_cast<const Chunk<T>*>(address);
}

template <typename T>
__device__ __forceinline__ uint32_t bits(const Pair<T>& pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename T>
__device__ __forceinline__ Pair<T> pair_of(uint32_t bits) {
  return *reinterpret_cast<const Pair<T>*>(&bits);
}

template <typename T>
__device__ __forceinline__ Pair<T> make_pair(float x, float y) {
#if BIOATTN_CAPABILITY >= 800
  uint32_t packed;
  if constexpr (std::is_same_v<T, c10::Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(y), "f"(x));
    return pair_of<T>(packed);
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(y), "f"(x));
    return pair_of<T>(packed);
  }
#endif
  return {static_cast<T>(x), static_cast<T>(y)};
}

// sum + a.x * b.x + a.y * b.y
template <typename T>
__device__ __forceinline__ float add_dot(float sum, const Pair<T>& a, const Pair<T>& b) {
  sum = fmaf(static_cast<float>(a.x), static_cast<float>(b.x), sum);
  return fmaf(static_cast<float>(a.y), static_cast<float>(b.y), sum);
}

// An optimisation barrier: integers and global addresses stay in registers, instead of being computed again.
__device__ __forceinline__ void optimisation_barrier(int& number) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(number));
#endif
}

template <typename T>
__device__ __forceinline__ void optimisation_barrier(T*& address) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(address));
  __builtin_assume(__isGlobal(address));
#endif
}

template <int kSteps>
__device__ __forceinline__ void optimisation_barrier(Pair<float> (&factor)[kSteps][2]) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int k = 0; k < 2 * kSteps; ++k) asm volatile("" : "+f"(factor[k / 2][k % 2].x), "+f"(factor[k / 2][k % 2].y));
#endif
}

template <typename First, typename Second, typename... Others>
__device__ __forceinline__ void optimisation_barrier(First& first, Second& second, Others&... others) {
  optimisation_barrier(first);
  optimisation_barrier(second, others...);
}

// The pointer `count` * `bytes` behind `data` in global memory, computed in one instruction.
template <typename T>
__device__ __forceinline__ T* offset_pointer(T* data, int count, int bytes) {
#ifdef __CUDA_ARCH__
  T* address;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(address) : "r"(count), "r"(bytes), "l"(data));
  __builtin_assume(__isGlobal(address));
  return address;
#else
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(data) + static_cast<int64_t>(count) * bytes);
#endif
}

// Sum and maximum over the four lanes of a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}

// Two sums over the four lanes of a row: lane t gets the sum of x[t % 2].
__device__ __forceinline__ float quad_sums(const float (&x)[2], int t) {
  int odd = t % 2;
  optimisation_barrier(odd);
  const float own = (odd ? x[1] : x[0]) + __shfl_xor_sync(kFullWarp, odd ? x[0] : x[1], 1);
  return own + __shfl_xor_sync(kFullWarp, own, 2);
}

// Four sums: lane t gets the sum of x[t].
__device__ __forceinline__ float quad_sums(const float (&x)[4], int t) {
  int odd = t % 2, upper = t / 2;
  optimisation_barrier(odd, upper);
  const float low = (odd ? x[1] : x[0]) + __shfl_xor_sync(kFullWarp, odd ? x[0] : x[1], 1);
  const float high = (odd ? x[3] : x[2]) + __shfl_xor_sync(kFullWarp, odd ? x[2] : x[3], 1);
  return (upper ? high : low) + __shfl_xor_sync(kFullWarp, upper ? low : high, 2);
}

// exp(x) = power_of_two(kLog2e * x): one instruction, relative error 2^-22; a result below 2^-126 is 0.
constexpr float kLog2e = 1.44269504f;

__device__ __forceinline__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The distribution function of the normal distribution: GELU(x) = x * cumulative(x).
template <typename T>
__device__ __forceinline__ T cumulative(T x) {
  return T(0.5) + T(0.5) * erf(T(0.70710678118654752440) * x);
}

// GELU'(x), given cumulative(x).
__device__ __forceinline__ float gelu_slope(float x, float cumulative) {
  return cumulative + x * 0.39894228f * power_of_two(-0.5f * kLog2e * x * x);
}

// 1 / x with a relative error of 2^-23, for x from 2^-126 to 2^126.
__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The address of shared memory as PTX instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies sixteen bytes, or zeros, to shared memory. This thread sees them after `wait_for_copies`, others after a
// barrier.
__device__ __forceinline__ void copy_to_shared(void* target, const void* source, bool exists) {
#if BIOATTN_CAPABILITY >= 800
  const uint32_t address = shared_address(target), size = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(address), "l"(source), "r"(size) : "memory");
#else
  using Bytes = Chunk<uint32_t>;
  *static_cast<Bytes*>(target) = exists ? *static_cast<const Bytes*>(source) : Bytes{};
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if BIOATTN_CAPABILITY >= 800
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

// Loads four matrices of 8 x 8 elements in half precision: lane l gives the address of row l % 8 of matrix l / 8, and
// gets row g at columns 2t and 2t + 1 of each; if transposed, rows 2t and 2t + 1 at column g.
template <bool kTransposed, typename T>
__device__ __forceinline__ void load_matrices(Pair<T> (&matrices)[4], const T* row) {
  static_assert(sizeof(T) == 2);
  const uint32_t address = shared_address(row);
  uint32_t words[4];
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
#pragma unroll
  for (int n = 0; n < 4; ++n) matrices[n] = pair_of<T>(words[n]);
}

// c (16 x 8) += a (16 x 8) b (8 x 8) on the tensor cores. Volatile, so that the compiler does not move it into a
// branch: all lanes must execute it together.
template <typename T>
__device__ __forceinline__ void tensor_core_product(float (&c)[4], const Pair<T> (&a)[2], const Pair<T>& b) {
  if constexpr (std::is_same_v<T, c10::Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(b)));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(b)));
}

// The same for a step of sixteen, at twice the rate of two steps of eight; since compute capability 8.0.
template <typename T>
__device__ __forceinline__ void tensor_core_product(
    float (&c)[4], const Pair<T> (&a)[2], const Pair<T> (&next_a)[2], const Pair<T>& b, const Pair<T>& next_b) {
  if constexpr (std::is_same_v<T, c10::Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(next_a[0])), "r"(bits(next_a[1])), "r"(bits(b)),
          "r"(bits(next_b)));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(next_a[0])), "r"(bits(next_a[1])), "r"(bits(b)),
          "r"(bits(next_b)));
}

// float32 as two tf32 parts each: three products keep all but about 2^-22. The high part is rounded to nearest; the
// tensor core would cut bits off. Its summed dimension t, t + 4 is 2t, 2t + 1 here, in both factors.
__device__ __forceinline__ void tensor_core_product(float (&c)[4], const Pair<float> (&a)[2], const Pair<float>& b) {
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

// The product without tensor cores, not inlined: a kernel has up to a hundred. A quad's lanes have a row's factors.
struct Accumulator {
  float c[4];
};

template <typename T>
__device__ __noinline__ Accumulator plain_product(Accumulator sums, Pair<T> upper, Pair<T> lower, Pair<T> b) {
  const int lane = threadIdx.x % kWarpSize, quad = lane & ~3, column = lane % 4 * 2;
  const auto from = [](const T& x, int source) { return __shfl_sync(kFullWarp, static_cast<float>(x), source); };
#pragma unroll 1
  for (int t = 0; t < 4; ++t) {
    const float upper_x = from(upper.x, quad + t), upper_y = from(upper.y, quad + t);
    const float lower_x = from(lower.x, quad + t), lower_y = from(lower.y, quad + t);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float b_x = from(b.x, (column + n) * 4 + t), b_y = from(b.y, (column + n) * 4 + t);
      sums.c[n] += upper_x * b_x + upper_y * b_y;
      sums.c[2 + n] += lower_x * b_x + lower_y * b_y;
    }
  }
  return sums;
}

// c (16 x 8) += a (16 x 8) b (8 x 8).
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const Pair<T> (&a)[2], const Pair<T>& b) {
  if constexpr (kTensorCores<T>) {
    tensor_core_product(c, a, b);
  } else {
    const Accumulator sums = plain_product(Accumulator{c[0], c[1], c[2], c[3]}, a[0], a[1], b);
#pragma unroll
    for (int k = 0; k < 4; ++k) c[k] = sums.c[k];
  }
}

// Two steps: c (16 x 8) += a (16 x 8) b (8 x 8) + next_a next_b.
template <typename T>
__device__ __forceinline__ void multiply_add(
    float (&c)[4], const Pair<T> (&a)[2], const Pair<T> (&next_a)[2], const Pair<T>& b, const Pair<T>& next_b) {
  if constexpr (BIOATTN_CAPABILITY >= 800 && sizeof(T) == 2) {
    tensor_core_product(c, a, next_a, b, next_b);
  } else {
    multiply_add(c, a, b);
    multiply_add(c, next_a, next_b);
  }
}

}  // namespace bioattn_mm
