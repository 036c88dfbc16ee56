// Vectors of 64 bytes, which the compiler splits where the processor's are shorter.
#pragma once

#include "kernels.h"

#include <c10/util/BFloat16.h>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed to inlined functions only

namespace bioattn_mm {

template <typename T>
constexpr int64_t kLanes = 64 / sizeof(T);

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(64)));
  typedef T in_memory __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};
template <>
struct VectorOf<c10::BFloat16> {};  // see below
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

}  // namespace bioattn_mm
