// Loops of the CPU kernels.
#pragma once

#include "headers.h"

#define BIOATTN_INLINE inline __attribute__((always_inline))
// Kernels take their arguments by value: those behind a reference would be loaded again after each store.
#define BIOATTN_KERNEL __attribute__((noinline))

namespace bioattn_mm::BIOATTN_ISA {

// Allocates memory from a cache line on: vectors of 32 bytes across two lines take two loads.
template <typename T>
struct CacheLineAllocator {
  typedef T value_type;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename Other>
  CacheLineAllocator(const CacheLineAllocator<Other>&) {}

  T* allocate(size_t number) { return static_cast<T*>(::operator new(number * sizeof(T), kAlignment)); }
  void deallocate(T* data, size_t) { ::operator delete(data, kAlignment); }
  bool operator==(const CacheLineAllocator&) const { return true; }
  bool operator!=(const CacheLineAllocator&) const { return false; }
};
template <typename T>
using Buffer = std::vector<T, CacheLineAllocator<T>>;

// The larger of two elements; the second where one is NaN.
template <typename T>
BIOATTN_INLINE T larger(T x, T y) {
  return x > y ? x : y;
}

template <typename To, typename From>
BIOATTN_INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// exp(x) for x <= 88, with a relative error of at most 2e-7 + 1.4e-8 |x|: 2^n 2^f, n = x / ln 2 rounded, by a
// polynomial for 2^f. `Unsigned` has the size of x. Results are at least the smallest normal number; NaN stays NaN.
template <typename Unsigned, typename Float>
BIOATTN_INLINE Float exponential_of(const Float& x) {
  constexpr float kInverseOfLn2 = 1.44269504f;
  constexpr float kRoundToInteger = 12582912.f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  const Float limited = larger(Float{} - 87.f, x);
  const Float shifted = limited * kInverseOfLn2 + kRoundToInteger;
  const Float f = limited * kInverseOfLn2 - (shifted - kRoundToInteger);
  const Float p =
      ((((f * 1.32647261e-3f + 9.67151299e-3f) * f + 5.55073359e-2f) * f + 2.40222424e-1f) * f + 6.93147004e-1f) * f +
      1.f;
  return same_bits<Float>(same_bits<Unsigned>(p) + (same_bits<Unsigned>(shifted) << 23));  // n into the exponent
}

BIOATTN_INLINE float exponential(float x) { return exponential_of<uint32_t>(x); }
BIOATTN_INLINE double exponential(double x) { return std::exp(x); }

constexpr int64_t kGrain = 1 << 14;  // the elements that are worth a thread

// How many tasks of so many elements are worth a thread.
inline int64_t grain_of(int64_t elements) { return divide_up(kGrain, std::max(elements, int64_t(1))); }

template <typename T>
BIOATTN_INLINE T dot(const T* a, const T* b, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y += factor * x
template <typename T>
BIOATTN_INLINE void add_scaled(T* y, T factor, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// y = factor * x, which may be the same memory
template <typename T>
BIOATTN_INLINE void scale_to(T* y, const T* x, int64_t n, T factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

// Zeros, without PyTorch's dispatcher, which takes longer than small tensors do.
inline Tensor zeroed(Span sizes, const Options& options) {
  const Tensor tensor = empty(sizes, options);
  char* const bytes = static_cast<char*>(tensor.mutable_data_ptr());
  parallel_for(
      0, tensor.nbytes(), 16 * kGrain, [&](int64_t begin, int64_t end) { std::fill(bytes + begin, bytes + end, 0); });
  return tensor;
}

// Adds up parts (N, ...) in order: the elements of the sum from `first` on, as a tensor of its own.
template <typename T>
Tensor sum_of_parts(const Tensor& parts, int64_t first, Span sizes) {
  const Tensor sum = empty(sizes, parts.options());
  const int64_t number = parts.size(0), size = parts.numel() / std::max(number, int64_t(1));
  T* const target = DataOf{sum};
  const T* const source = DataOf{parts};
  std::fill_n(target, sum.numel(), T(0));
  for (int64_t k = 0; k < number; ++k) add_scaled(target, T(1), source + k * size + first, sum.numel());
  return sum;
}

// x = exp(x - shift); returns the sum.
template <typename T>
BIOATTN_INLINE T exponentiate(T* x, int64_t n, T shift) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    x[i] = exponential(x[i] - shift);
    sum += x[i];
  }
  return sum;
}

}  // namespace bioattn_mm::BIOATTN_ISA
