// Vectors of 64 bytes, which the compiler splits where the processor's are shorter.
#pragma once

#include "kernels.h"

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

}  // namespace bioattn_mm
