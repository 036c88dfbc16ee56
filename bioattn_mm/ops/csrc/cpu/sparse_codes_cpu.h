// The threshold of a proximal gradient step on the CPU, and its gradient; the lanes of a vector are channels of a
// row.
#pragma once

#include "gelu.h"

namespace bioattn_mm::BIOATTN_ISA::sparse_codes {
namespace {

// So many elements, which are those of a vector or fewer; the other lanes are 0.
template <typename T>
BIOATTN_INLINE Vector<T> load_some(const T* data, int64_t number) {
  if (number == kLanes<T>) return load(data);
  Vector<T> vector = {};
  std::memcpy(&vector, data, number * sizeof(T));
  return vector;
}
template <typename T>
BIOATTN_INLINE void store_some(T* data, const Vector<T>& vector, int64_t number) {
  if (number == kLanes<T>) return store(data, vector);
  std::memcpy(data, &vector, number * sizeof(T));
}

// y with the sign of x, 0 where x is 0; NaN where one is.
template <typename V>
BIOATTN_INLINE V with_sign(const V& x, const V& y) {
  return x > 0 ? y : (x < 0 ? -y : x * y);
}

template <typename T>
T length_of(const SparseCodesPointers<T>& s, int64_t row) {
  return s.codes.data ? s.lengths[row / s.states] : T(1);
}

// Calls function(c, number) for the vectors of a row's channels.
template <typename T, typename Function>
BIOATTN_INLINE void for_parts(int64_t channels, const Function& function) {
  for (int64_t c = 0; c < channels; c += kLanes<T>) function(c, std::min(kLanes<T>, channels - c));
}

template <typename T>
BIOATTN_KERNEL void advance(
    const SparseCodesPointers<T> s, RowsOf<const T> product, RowsOf<T> residual, RowsOf<T> next, int64_t begin,
    int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T length = length_of(s, row), threshold = length * *s.penalty;
    for_parts<T>(s.channels, [&](int64_t c, int64_t number) __attribute__((always_inline)) {
      const auto at = [&](const auto& rows) { return rows.data + row * rows.stride + c; };
      Vector<T> x = load_some(at(s.target), number), cumulative, density;
      if (s.codes.data) {
        x -= load_some(at(product), number);
        if (residual.data) store_some(at(residual), x, number);
        x = load_some(at(s.codes), number) + length * x;
      }
      const Vector<T> size = (x < 0 ? -x : x) - threshold;
      normal_distribution(size, cumulative, density);
      store_some(at(next), with_sign(x, Vector<T>(size * cumulative)), number);
    });
  }
}

template <typename T>
BIOATTN_KERNEL void differentiate(
    const SparseCodesPointers<T> s, const SparseCodesGradients<T> g, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T length = length_of(s, row), threshold = length * *s.penalty;
    Vector<T> length_sum = {}, penalty_sum = {};
    for_parts<T>(s.channels, [&](int64_t c, int64_t number) __attribute__((always_inline)) {
      const auto at = [&](const auto& rows) { return rows.data + row * rows.stride + c; };
      Vector<T> x = load_some(at(s.target), number), residual = {}, cumulative, density;
      if (s.codes.data) {
        residual = load_some(at(g.residual), number);
        x = load_some(at(s.codes), number) + length * residual;
      }
      const Vector<T> size = (x < 0 ? -x : x) - threshold;
      normal_distribution(size, cumulative, density);
      Vector<T> grad = load_some(at(g.grad), number);
      if (g.product.data) grad += load_some(at(g.product), number);
      grad = x != 0 ? grad * (cumulative + size * density) : Vector<T>{};  // the size of 0 has none
      length_sum += grad * residual, penalty_sum -= with_sign(x, grad);
      if (s.codes.data) {
        store_some(at(g.scaled), Vector<T>(-length * grad), number);
      } else {
        for (int64_t step = 0; step < g.num_steps; ++step)
          grad -= load_some(static_cast<const T*>(at(g.scaled)) + step * s.channels, number);
      }
      store_some(at(g.of_sum), grad, number);
    });
    T of_length = 0, of_penalty = 0;
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) of_length += length_sum[lane], of_penalty += penalty_sum[lane];
    g.of_penalty[row] = length * of_penalty;
    g.of_length[row] = s.codes.data ? of_length + *s.penalty * of_penalty : T(0);
  }
}

template <typename Function>
void for_rows(const Tensor& target, const Function& function) {
  const int64_t channels = std::max(int64_t(1), target.size(2));
  parallel_for(0, target.size(0) * target.size(1), kGrain / 4 / channels + 1, function);
}

}  // namespace

void forward(const SparseCodesStep& step, const Tensor& product, const Tensor& next) {
  dispatch<float, double>(next.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    for_rows(step.target, [&](int64_t begin, int64_t end) {
      advance(
          SparseCodesPointers<T>(step), RowsOf<const T>(product), RowsOf<T>(step.residual), RowsOf<T>(next), begin,
          end);
    });
  });
}

void backward(
    const SparseCodesStep& step, const Tensor& grad, const Tensor& product, const Tensor& of_sum,
    const Tensor& scaled, const Tensor& of_length, const Tensor& of_penalty) {
  dispatch<float, double>(grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const SparseCodesGradients<T> gradients(step, grad, product, of_sum, scaled, of_length, of_penalty);
    for_rows(step.target, [&](int64_t begin, int64_t end) {
      differentiate(SparseCodesPointers<T>(step), gradients, begin, end);
    });
  });
}

}  // namespace bioattn_mm::BIOATTN_ISA::sparse_codes
