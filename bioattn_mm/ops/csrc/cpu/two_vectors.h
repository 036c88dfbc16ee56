// Two vectors with the operations of one.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA {

template <typename T>
struct TwoVectors {
  Vector<T> low, high;
};
#define BIOATTN_ELEMENTWISE(operation, assignment)                                                  \
  template <typename T>                                                                             \
  BIOATTN_INLINE TwoVectors<T> operator operation(const TwoVectors<T>& x, const TwoVectors<T>& y) { \
    return {x.low operation y.low, x.high operation y.high};                                        \
  }                                                                                                 \
  template <typename T>                                                                             \
  BIOATTN_INLINE TwoVectors<T> operator operation(const TwoVectors<T>& x, T y) {                    \
    return {x.low operation y, x.high operation y};                                                 \
  }                                                                                                 \
  template <typename T>                                                                             \
  BIOATTN_INLINE void operator assignment(TwoVectors<T>& x, const TwoVectors<T>& y) {               \
    x = x operation y;                                                                              \
  }
BIOATTN_ELEMENTWISE(+, +=)
BIOATTN_ELEMENTWISE(-, -=)
BIOATTN_ELEMENTWISE(*, *=)
#undef BIOATTN_ELEMENTWISE

template <typename T>
BIOATTN_INLINE TwoVectors<T> operator/(int x, const TwoVectors<T>& y) {
  return {T(x) / y.low, T(x) / y.high};
}

template <typename T>
BIOATTN_INLINE void store(T* data, const TwoVectors<T>& lanes) {
  store(data, lanes.low);
  store(data + kLanes<T>, lanes.high);
}

template <typename T>
BIOATTN_INLINE void add_to(T* data, const TwoVectors<T>& lanes) {
  add_to(data, lanes.low), add_to(data + kLanes<T>, lanes.high);
}

template <typename T>
BIOATTN_INLINE void add_product(TwoVectors<T>& sum, const TwoVectors<T>& x, const T& y) {
  add_product(sum.low, x.low, y), add_product(sum.high, x.high, y);
}

template <typename T>
BIOATTN_INLINE TwoVectors<T> larger(const TwoVectors<T>& x, const TwoVectors<T>& y) {
  return {larger(x.low, y.low), larger(x.high, y.high)};
}

template <typename T>
BIOATTN_INLINE TwoVectors<T> exponential(const TwoVectors<T>& x) {
  return {exponential(x.low), exponential(x.high)};
}

// y where x < limit, else 0.
template <typename V, typename T>
BIOATTN_INLINE V where_less(const V& x, T limit, const V& y) {
  return x < limit ? y : V{};
}
template <typename T>
BIOATTN_INLINE TwoVectors<T> where_less(const TwoVectors<T>& x, T limit, const TwoVectors<T>& y) {
  return {where_less(x.low, limit, y.low), where_less(x.high, limit, y.high)};
}

}  // namespace bioattn_mm::BIOATTN_ISA
