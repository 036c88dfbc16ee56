// Vectors as wide as the registers of the instruction set.
#pragma once

#include "kernels.h"

// Whether all tokens are bfloat16 and there are instructions for it; functions are then only as exact as it needs.
#ifndef BIOATTN_BFLOAT16
#define BIOATTN_BFLOAT16 0
#endif
#ifndef BIOATTN_AMX
#define BIOATTN_AMX 0
#endif
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed to inlined functions only

namespace bioattn_mm::BIOATTN_ISA {

constexpr int64_t kVectorBytes = BIOATTN_VECTOR_BYTES, kRegisters = BIOATTN_REGISTERS;

template <typename T>
constexpr int64_t kLanes = kVectorBytes / sizeof(T);

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T in_memory __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};
struct BFloat16x2;  // defined below
template <>
struct VectorOf<c10::BFloat16> {};
template <>
struct VectorOf<BFloat16x2> {};
template <typename T>
using Vector = typename VectorOf<T>::type;

template <typename T>
BIOATTN_INLINE Vector<T> load(const T* data) {
  return *reinterpret_cast<const typename VectorOf<T>::in_memory*>(data);
}

template <typename T>
BIOATTN_INLINE void store(T* data, const Vector<T>& vector) {
  *reinterpret_cast<typename VectorOf<T>::in_memory*>(data) = vector;
}

// Calls function(c) for the first channel of each vector; the last vector may overlap the one before.
template <typename T, typename Function>
BIOATTN_INLINE void for_vectors(int64_t channels, const Function& function) {
  for (int64_t c = 0; c < channels; c += kLanes<T>) function(std::min(c, channels - kLanes<T>));
}

template <typename T>
BIOATTN_INLINE void add_to(T* data, const Vector<T>& vector) {
  store(data, load(data) + vector);
}

#if BIOATTN_X86
// One instruction does this. Compilers do not find it for a comparison of elements that may be NaN.
BIOATTN_INLINE Vector<float> larger(const Vector<float>& x, const Vector<float>& y) {
#if BIOATTN_VECTOR_BYTES == 64
  return (Vector<float>)_mm512_max_ps((__m512)x, (__m512)y);
#elif BIOATTN_VECTOR_BYTES == 32
  return (Vector<float>)_mm256_max_ps((__m256)x, (__m256)y);
#else
  return (Vector<float>)_mm_max_ps((__m128)x, (__m128)y);
#endif
}
#endif

// Elements of bfloat16 in memory are float32 in vectors.
typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfBits __attribute__((vector_size(kVectorBytes / 2)));
typedef uint16_t HalfBitsInMemory __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef Bits BitsInMemory __attribute__((aligned(4), may_alias));

#if BIOATTN_BFLOAT16
// exp(x) for x < 88, relative error 3e-6: 2^n by an instruction, times a polynomial for 2^r, 0 <= r < 1.
BIOATTN_INLINE Vector<float> exponential(const Vector<float>& exponent) {
  const Vector<float> x = exponent * 1.44269504f;
  const auto r = (Vector<float>)_mm512_reduce_ps((__m512)x, 1);  // x - floor(x), and 0 where x is infinite
  const Vector<float> p = (((r * 0.01353417f + 0.05201147f) * r + 0.24144275f) * r + 0.69300384f) * r + 1.0000026f;
  return (Vector<float>)_mm512_scalef_ps((__m512)p, (__m512)x);  // p * 2^floor(x)
}
#else
BIOATTN_INLINE Vector<float> exponential(const Vector<float>& x) { return exponential_of<Bits>(x); }
#endif

BIOATTN_INLINE Vector<double> exponential(const Vector<double>& x) {
  Vector<double> result;
  for (int64_t lane = 0; lane < kLanes<double>; ++lane) result[lane] = std::exp(x[lane]);
  return result;
}

BIOATTN_INLINE Vector<float> load(const c10::BFloat16* data) {
  const HalfBits bits = *reinterpret_cast<const HalfBitsInMemory*>(data);
  return (Vector<float>)(__builtin_convertvector(bits, Bits) << 16);
}

BIOATTN_INLINE void store(c10::BFloat16* data, const Vector<float>& vector) {
#if BIOATTN_BFLOAT16
  const auto result = (HalfBits)_mm512_cvtneps_pbh((__m512)vector);
#else
  // This rounds to the nearest, and halves to even; NaN stays NaN.
  const Bits bits = (Bits)vector, is_nan = (Bits)(vector != vector);
  const Bits rounded = (bits + (((bits >> 16) & 1) + 0x7fff)) >> 16;
  const HalfBits result = __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), HalfBits);
#endif
  *reinterpret_cast<HalfBitsInMemory*>(data) = result;
}

// bf16x2, a factor of products: two elements of bfloat16.
struct BFloat16x2 {
  c10::BFloat16 elements[2];
};
// How many elements a factor of products packs.
template <typename Element>
constexpr int64_t kPacked = 1;
template <>
inline constexpr int64_t kPacked<BFloat16x2> = 2;

BIOATTN_INLINE Bits load(const BFloat16x2* data) { return *reinterpret_cast<const BitsInMemory*>(data); }

BIOATTN_INLINE void store(BFloat16x2* data, const Bits& pairs) { *reinterpret_cast<BitsInMemory*>(data) = pairs; }

// sum += x * y
template <typename T>
BIOATTN_INLINE void add_product(Vector<T>& sum, const Vector<T>& x, const T& y) {
  sum += x * y;
}

#if BIOATTN_BFLOAT16
// Products of bf16x2 with a sum in float32, at twice the rate of products of float32:
// sum += x.elements[0] * y.elements[0] + x.elements[1] * y.elements[1]
BIOATTN_INLINE void add_product(Vector<float>& sum, const Bits& x, const BFloat16x2& y) {
  const __m512i factor = _mm512_set1_epi32(same_bits<int32_t>(y));
  sum = (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)factor);
}

// 32 elements in bfloat16, those of `first` before those of `second`.
BIOATTN_INLINE Bits narrow(const Vector<float>& first, const Vector<float>& second) {
  return (Bits)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// Pairs 32 elements of bfloat16: lane i of the result has elements i and 16 + i.
BIOATTN_INLINE Bits make_pairs(const Bits& numbers) {
  constexpr Bits kOrder = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                           0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
  return (Bits)_mm512_permutexvar_epi16((__m512i)kOrder, (__m512i)numbers);
}

BIOATTN_INLINE Bits make_pairs(const Vector<float>& first, const Vector<float>& second) {
  return make_pairs(narrow(first, second));
}
#endif

// The lane that becomes `lane` of one of two rows when their blocks of `step` lanes are transposed; the lanes of the
// second row are counted on from those of the first.
constexpr int source_lane(int lane, int step, bool of_second_row) {
  const bool from_second_row = lane & step;
  const int second = kLanes<float>;
  if (from_second_row == of_second_row) return from_second_row ? lane + second : lane;
  return from_second_row ? lane + second - step : lane + step;
}

template <int64_t step, bool second_row, typename V, size_t... lane>
BIOATTN_INLINE V exchange(const V& first, const V& second, std::index_sequence<lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(first, second, source_lane(lane, step, second_row)...);
#else
  typedef int32_t Lane __attribute__((vector_size(kVectorBytes)));
  return __builtin_shuffle(first, second, Lane{source_lane(lane, step, second_row)...});
#endif
}

// Transposes each block of kRows x kRows lanes of kRows vectors.
template <int64_t kRows, int64_t step = kRows / 2, typename V>
BIOATTN_INLINE void transpose_blocks(V (&rows)[kRows]) {
  constexpr auto kAll = std::make_index_sequence<kLanes<float>>();
#pragma GCC unroll 16
  for (int64_t i = 0; i < kRows; ++i) {
    if (i & step) continue;
    const V first = rows[i], second = rows[i + step];
    rows[i] = exchange<step, false>(first, second, kAll);
    rows[i + step] = exchange<step, true>(first, second, kAll);
  }
  if constexpr (step > 1) transpose_blocks<kRows, step / 2>(rows);
}

}  // namespace bioattn_mm::BIOATTN_ISA
