// Loops of the CPU kernels, and how they are compiled for several instruction sets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// One binary for every x86-64 processor: it has a clone of a function for each instruction set, and the loader picks the
// best that the processor can run.
#if !defined(__x86_64__) || !defined(__gnu_linux__) || !defined(__GNUC__) || defined(__clang__)
#define BIOATTN_CLONES
#elif __GNUC__ < 12
#define BIOATTN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
// Level 3 is AVX2 with FMA.
#define BIOATTN_CLONES __attribute__((target_clones("avx512f", "arch=x86-64-v3", "default")))
// Functions with the instructions of bfloat16; `has_bfloat16` says whether the processor can run them.
#define BIOATTN_FOR_BFLOAT16 __attribute__((target("arch=x86-64-v4,avx512bf16")))
#endif
#define BIOATTN_INLINE inline __attribute__((always_inline))

// Defines `name` for float and double by the template `name_body`. Templates cannot have clones, functions can; they
// inline the body, which so is compiled for each clone. It gets a copy of the arguments: what it stores could else change
// them for all that a compiler knows, which would read them again after each store.
#define BIOATTN_CLONE(name, Arguments)                           \
  BIOATTN_CLONES void name(const Arguments<float>& arguments) {  \
    const Arguments<float> copy = arguments;                     \
    name##_body(copy);                                           \
  }                                                              \
  BIOATTN_CLONES void name(const Arguments<double>& arguments) { \
    const Arguments<double> copy = arguments;                    \
    name##_body(copy);                                           \
  }

namespace bioattn_mm {

// Tests switch it off to run what other processors run.
inline bool bfloat16_is_allowed = true;

inline bool has_bfloat16() {
#ifdef BIOATTN_FOR_BFLOAT16
  return bfloat16_is_allowed && __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// exp(x) to 2 units in the last place by the reduction x = n ln 2 + r, |r| <= ln 2 / 2, in a form that compilers
// vectorise. It gives the smallest normal number instead of anything smaller, 0 included; NaN stays NaN.
BIOATTN_INLINE float exponential(float x) {
  constexpr float round_to_integer = 12582912.f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  x = x < -87.f ? -87.f : x;
  x = x > 88.f ? 88.f : x;
  const float shifted = x * 1.44269504f + round_to_integer;
  const float n = shifted - round_to_integer;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127u) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

BIOATTN_INLINE double exponential(double x) { return std::exp(x); }

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

template <typename T>
BIOATTN_INLINE T maximum(const T* x, int64_t n, T start) {
#pragma omp simd reduction(max : start)
  for (int64_t i = 0; i < n; ++i) start = x[i] > start ? x[i] : start;
  return start;
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

// Calls function(offset, y, x) for each token (y, x) of the window around (i, j) that is inside the image.
template <typename Sizes, typename Function>
BIOATTN_INLINE void for_window(const Sizes& s, int64_t i, int64_t j, const Function& function) {
  const int64_t margin = s.window / 2;
  for (int64_t dy = std::max(-margin, -i); dy <= std::min(margin, s.height - 1 - i); ++dy)
    for (int64_t dx = std::max(-margin, -j); dx <= std::min(margin, s.width - 1 - j); ++dx)
      function((dy + margin) * s.window + dx + margin, i + dy, j + dx);
}

}  // namespace bioattn_mm
