// Vectors of 64 bytes, which the compiler splits where the processor's are shorter.
#pragma once

#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed to inlined functions only

namespace bioattn_mm {

template <typename T>
constexpr int64_t kLanes = 64 / sizeof(T);

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(64)));
  typedef T in_memory __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};
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

// Loads the first `count` lanes from memory; the others are zero. `Data` may be a dtype of half precision.
template <typename T, typename Data>
BIOATTN_INLINE Vector<T> load_by_lane(const Data* data, int64_t count) {
  T lanes[kLanes<T>] = {};
  for (int64_t lane = 0; lane < count; ++lane) lanes[lane] = data[lane];
  return load(lanes);
}

template <typename T, typename Data>
BIOATTN_INLINE void store_by_lane(Data* data, const Vector<T>& vector, int64_t count) {
  T lanes[kLanes<T>];
  store(lanes, vector);
  for (int64_t lane = 0; lane < count; ++lane) data[lane] = lanes[lane];
}

BIOATTN_INLINE Vector<float> load_some(const float* data, int64_t count) {
  return count == kLanes<float> ? load(data) : load_by_lane<float>(data, count);
}
BIOATTN_INLINE Vector<double> load_some(const double* data, int64_t count) {
  return count == kLanes<double> ? load(data) : load_by_lane<double>(data, count);
}
BIOATTN_INLINE Vector<float> load_some(const c10::Half* data, int64_t count) { return load_by_lane<float>(data, count); }

BIOATTN_INLINE void store_some(float* data, const Vector<float>& vector, int64_t count) {
  count == kLanes<float> ? store(data, vector) : store_by_lane<float>(data, vector, count);
}
BIOATTN_INLINE void store_some(double* data, const Vector<double>& vector, int64_t count) {
  count == kLanes<double> ? store(data, vector) : store_by_lane<double>(data, vector, count);
}
BIOATTN_INLINE void store_some(c10::Half* data, const Vector<float>& vector, int64_t count) {
  store_by_lane<float>(data, vector, count);
}

typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t HalfBits __attribute__((vector_size(32)));
typedef uint16_t HalfBitsInMemory __attribute__((vector_size(32), aligned(2), may_alias));

BIOATTN_INLINE Vector<float> load_some(const c10::BFloat16* data, int64_t count) {
  if (count < kLanes<float>) return load_by_lane<float>(data, count);
  const HalfBits bits = *reinterpret_cast<const HalfBitsInMemory*>(data);
  return (Vector<float>)(__builtin_convertvector(bits, Bits) << 16);
}

BIOATTN_INLINE void store_some(c10::BFloat16* data, const Vector<float>& vector, int64_t count) {
  if (count < kLanes<float>) return store_by_lane<float>(data, vector, count);
  // To the nearest, halves to even; NaN stays NaN.
  const Bits bits = (Bits)vector, is_nan = (Bits)(vector != vector);
  const Bits rounded = (bits + (((bits >> 16) & 1) + 0x7fff)) >> 16;
  const Bits result = (rounded & ~is_nan) | (0x7fc0 & is_nan);
  *reinterpret_cast<HalfBitsInMemory*>(data) = __builtin_convertvector(result, HalfBits);
}

}  // namespace bioattn_mm
