// Vectors of 64 bytes, which the compiler splits where the processor's are shorter.
#pragma once

#include "kernels.h"

#include <c10/util/BFloat16.h>

#include <utility>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed to inlined functions only

namespace bioattn_mm {

template <typename T>
constexpr int64_t kLanes = 64 / sizeof(T);

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(64)));
  typedef T in_memory __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};
// See below.
struct Pair;
struct NativeBFloat16;
template <>
struct VectorOf<c10::BFloat16> {};
template <>
struct VectorOf<NativeBFloat16> {};
template <>
struct VectorOf<Pair> {};
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

template <typename T>
BIOATTN_INLINE void add_to(T* data, const Vector<T>& vector) {
  store(data, load(data) + vector);
}

// bfloat16 in memory is float32 in vectors.
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t HalfBits __attribute__((vector_size(32)));
typedef uint16_t HalfBitsInMemory __attribute__((vector_size(32), aligned(2), may_alias));

BIOATTN_INLINE Vector<float> load(const c10::BFloat16* data) {
  const HalfBits bits = *reinterpret_cast<const HalfBitsInMemory*>(data);
  return (Vector<float>)(__builtin_convertvector(bits, Bits) << 16);
}

BIOATTN_INLINE void store(c10::BFloat16* data, const Vector<float>& vector) {
  // To the nearest, halves to even; NaN stays NaN.
  const Bits bits = (Bits)vector, is_nan = (Bits)(vector != vector);
  const Bits rounded = (bits + (((bits >> 16) & 1) + 0x7fff)) >> 16;
  const Bits result = (rounded & ~is_nan) | (0x7fc0 & is_nan);
  *reinterpret_cast<HalfBitsInMemory*>(data) = __builtin_convertvector(result, HalfBits);
}

// An element of a product: a number, or two numbers of bfloat16.
struct Pair {
  c10::BFloat16 numbers[2];
};
template <typename Element>
constexpr int64_t kNumbers = 1;
template <>
inline constexpr int64_t kNumbers<Pair> = 2;

BIOATTN_INLINE Bits load(const Pair* data) {
  typedef Bits InMemory __attribute__((aligned(4), may_alias));
  return *reinterpret_cast<const InMemory*>(data);
}

BIOATTN_INLINE void store(Pair* data, const Bits& pairs) {
  typedef Bits InMemory __attribute__((aligned(4), may_alias));
  *reinterpret_cast<InMemory*>(data) = pairs;
}

// sum += x * y
template <typename T>
BIOATTN_INLINE void add_product(Vector<T>& sum, const Vector<T>& x, const T& y) {
  sum += x * y;
}

// What follows is for processors with AVX512-BF16; only functions with BIOATTN_FOR_BFLOAT16 may call it. Instructions are
// written as such, because compilers inline intrinsics only into functions for these processors, and the templates that
// call them are for others, too.
#ifdef BIOATTN_FOR_BFLOAT16
// bfloat16 in memory that instructions convert.
struct NativeBFloat16 {
  uint16_t bits;
};

BIOATTN_INLINE Vector<float> load(const NativeBFloat16* data) {
  Bits bits;
  asm("vpmovzxwd %1, %0" : "=v"(bits) : "m"(*reinterpret_cast<const HalfBitsInMemory*>(data)));
  return (Vector<float>)(bits << 16);
}

BIOATTN_INLINE void store(NativeBFloat16* data, const Vector<float>& vector) {
  HalfBits bits;
  asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(vector));
  *reinterpret_cast<HalfBitsInMemory*>(data) = bits;
}

// exp(x) for x < 88 to 3e-6: 2^n by an instruction, times a polynomial that approximates 2^r for 0 <= r < 1.
BIOATTN_INLINE Vector<float> rough_exponential(const Vector<float>& exponent) {
  const Vector<float> x = exponent * 1.44269504f;
  Vector<float> r, result;
  asm("vreduceps $1, %1, %0" : "=v"(r) : "v"(x));  // x - floor(x), and 0 where x is infinite
  const Vector<float> p =
      (((r * 0.01353417f + 0.05201147f) * r + 0.24144275f) * r + 0.69300384f) * r + 1.0000026f;
  asm("vscalefps %2, %1, %0" : "=v"(result) : "v"(p), "v"(x));  // p * 2^floor(x)
  return result;
}

// 1 / x to 6e-5
BIOATTN_INLINE Vector<float> rough_inverse(const Vector<float>& x) {
  Vector<float> inverse;
  asm("vrcp14ps %1, %0" : "=v"(inverse) : "v"(x));
  return inverse;
}

// Products of pairs with a sum in float32, twice as many as of float32:
// sum += x.numbers[0] * y.numbers[0] + x.numbers[1] * y.numbers[1]
BIOATTN_INLINE void add_product(Vector<float>& sum, const Bits& x, const Pair& y) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(y));
}

BIOATTN_INLINE void add_pairs(Vector<float>& sum, const Bits& x, const Bits& y) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
}

BIOATTN_INLINE Bits broadcast(const Pair& pair) {
  Bits pairs;
  asm("vpbroadcastd %1, %0" : "=v"(pairs) : "m"(pair));
  return pairs;
}

// 32 numbers in bfloat16, those of `first` before those of `second`.
BIOATTN_INLINE Bits narrow(const Vector<float>& first, const Vector<float>& second) {
  Bits numbers;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(numbers) : "v"(first), "v"(second));
  return numbers;
}

// Of 32 numbers, in each lane the pair of those of its place in both halves.
BIOATTN_INLINE Bits make_pairs(const Bits& numbers) {
  constexpr Bits kOrder = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                           0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
  Bits pairs;
  asm("vpermw %1, %2, %0" : "=v"(pairs) : "v"(numbers), "v"(kOrder));
  return pairs;
}

BIOATTN_INLINE Bits make_pairs(const Vector<float>& first, const Vector<float>& second) {
  return make_pairs(narrow(first, second));
}

// Where a lane of one of two rows comes from when their blocks of `step` lanes are transposed. Lanes of the first row are
// counted from 0, those of the second from 16.
constexpr uint32_t source_lane(uint32_t lane, uint32_t step, bool of_second_row) {
  const bool from_second_row = lane & step;
  if (from_second_row == of_second_row) return from_second_row ? lane + 16 : lane;
  return from_second_row ? lane + 16 - step : lane + step;
}

template <int64_t step, bool second_row, size_t... lane>
BIOATTN_FOR_BFLOAT16 BIOATTN_INLINE Bits exchange(const Bits& first, const Bits& second, std::index_sequence<lane...>) {
  constexpr Bits kSources = {source_lane(lane, step, second_row)...};
  return __builtin_shuffle(first, second, kSources);
}

template <int64_t step>
BIOATTN_FOR_BFLOAT16 BIOATTN_INLINE void exchange_rows(Bits (&rows)[8]) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < 8; ++i) {
    if (i & step) continue;
    const Bits first = rows[i], second = rows[i + step];
    rows[i] = exchange<step, false>(first, second, std::make_index_sequence<16>());
    rows[i + step] = exchange<step, true>(first, second, std::make_index_sequence<16>());
  }
}

// Transposes the lower and the upper halves of 8 rows: 8 x 8 pairs each.
BIOATTN_FOR_BFLOAT16 BIOATTN_INLINE void transpose_halves(Bits (&rows)[8]) {
  exchange_rows<4>(rows);
  exchange_rows<2>(rows);
  exchange_rows<1>(rows);
}
#endif

}  // namespace bioattn_mm
