// The sliding window on the CPU. Each output is computed by one thread: sums have the same order for any number of
// threads.
#pragma once

#include "kernels.h"

namespace bioattn_mm::BIOATTN_ISA::sliding_window {
namespace {

// Arguments of the kernels, which compute one row of tokens; `row` counts through the rows of all images.
template <typename T>
struct Products {
  const WindowSizes<int64_t>& s;
  const T *tokens, *others, *bias;
  T *products, outside;
  int64_t row = 0;
};

template <typename T>
struct Sums {
  const WindowSizes<int64_t>& s;
  const T *weights, *tokens;
  T* sums;
  bool transposed;
  int64_t row = 0;
};

template <typename T>
BIOATTN_KERNEL void compute_products(const Products<T> p) {
  const auto& s = p.s;
  const int64_t i = p.row % s.height;
  for (int64_t j = 0; j < s.width; ++j) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t token = (p.row * s.width + j) * s.heads + head;
      T* target = p.products + token * s.offsets;
      std::fill_n(target, s.offsets, p.outside);
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const int64_t other = ((p.row - i + y) * s.width + x) * s.heads + head;
        target[offset] = dot(p.tokens + token * s.channels, p.others + other * s.channels, s.channels);
        if (p.bias) target[offset] += p.bias[head * s.offsets + offset];
      });
    }
  }
}

template <typename T>
BIOATTN_KERNEL void compute_sums(const Sums<T> p) {
  const auto& s = p.s;
  const int64_t i = p.row % s.height;
  for (int64_t j = 0; j < s.width; ++j) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t token = (p.row * s.width + j) * s.heads + head;
      T* target = p.sums + token * s.channels;
      std::fill_n(target, s.channels, T(0));
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const int64_t other = ((p.row - i + y) * s.width + x) * s.heads + head;
        // In the window of the other token, this one has the opposite offset.
        const int64_t weight = p.transposed ? other * s.offsets + s.offsets - 1 - offset : token * s.offsets + offset;
        add_scaled(target, p.weights[weight], p.tokens + other * s.channels, s.channels);
      });
    }
  }
}

// Calls compute(row) for every row of tokens.
template <typename Row, typename Function>
void for_rows(const Row& first, const Function& compute) {
  parallel_for(0, first.s.batch * first.s.height, 1, [&](int64_t begin, int64_t end) {
    Row row = first;
    for (row.row = begin; row.row < end; ++row.row) compute(row);
  });
}

}  // namespace

Tensor products(const Tensor& tokens, const Tensor& others, const Tensor& bias, int64_t offsets, double outside) {
  if (is_half_precision(tokens.scalar_type())) {
    const Tensor float_bias = bias.defined() ? bias.to(kFloat) : bias;
    return products(tokens.to(kFloat), others.to(kFloat), float_bias, offsets, outside).to(tokens.scalar_type());
  }
  const WindowSizes<int64_t> s(tokens, offsets);
  Tensor products = empty({s.batch, s.height, s.width, s.heads, s.offsets}, tokens.options());
  dispatch<float, double>(tokens.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const Products<scalar_t> rows{
        s,
        tokens.const_data_ptr<scalar_t>(),
        others.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(bias),
        products.mutable_data_ptr<scalar_t>(),
        static_cast<scalar_t>(outside)};
    for_rows(rows, [](const auto& row) { compute_products(row); });
  });
  return products;
}

Tensor sums(const Tensor& weights, const Tensor& tokens, bool transposed) {
  if (is_half_precision(tokens.scalar_type()))
    return sums(weights.to(kFloat), tokens.to(kFloat), transposed).to(tokens.scalar_type());
  const WindowSizes<int64_t> s(tokens, weights.size(4));
  Tensor sums = empty(tokens.sizes(), tokens.options());
  dispatch<float, double>(tokens.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const Sums<scalar_t> rows{
        s, weights.const_data_ptr<scalar_t>(), tokens.const_data_ptr<scalar_t>(), sums.mutable_data_ptr<scalar_t>(),
        transposed};
    for_rows(rows, [](const auto& row) { compute_sums(row); });
  });
  return sums;
}

}  // namespace bioattn_mm::BIOATTN_ISA::sliding_window
