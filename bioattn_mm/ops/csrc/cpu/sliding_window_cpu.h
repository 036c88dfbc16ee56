// The sliding window on the CPU. One thread computes an output: sums do not depend on the number of threads.
#pragma once

#include "kernels.h"

namespace bioattn_mm::BIOATTN_ISA::sliding_window {
namespace {

// Computes the products of one row of tokens, which are counted through the rows of all images.
template <typename T>
BIOATTN_KERNEL void compute_products(
    const WindowSizes<int64_t>& s, int64_t row, const T* tokens, const T* others, const T* bias, T outside,
    T* products) {
  const int64_t i = row % s.height;
  for (int64_t place = 0; place < s.width * s.heads; ++place) {
    const int64_t j = place / s.heads, head = place % s.heads, token = row * s.width * s.heads + place;
    T* target = products + token * s.offsets;
    std::fill_n(target, s.offsets, outside);
    for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
      const int64_t other = ((row - i + y) * s.width + x) * s.heads + head;
      target[offset] = dot(tokens + token * s.channels, others + other * s.channels, s.channels);
      if (bias) target[offset] += bias[head * s.offsets + offset];
    });
  }
}

template <typename T>
BIOATTN_KERNEL void compute_sums(
    const WindowSizes<int64_t>& s, int64_t row, const T* weights, const T* tokens, bool transposed, T* sums) {
  const int64_t i = row % s.height;
  for (int64_t place = 0; place < s.width * s.heads; ++place) {
    const int64_t j = place / s.heads, head = place % s.heads, token = row * s.width * s.heads + place;
    T* target = sums + token * s.channels;
    std::fill_n(target, s.channels, T(0));
    for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
      const int64_t other = ((row - i + y) * s.width + x) * s.heads + head;
      // This token has the opposite offset in the window of the other one.
      const int64_t weight = transposed ? other * s.offsets + s.offsets - 1 - offset : token * s.offsets + offset;
      add_scaled(target, weights[weight], tokens + other * s.channels, s.channels);
    });
  }
}

template <typename Function>
void for_rows(const WindowSizes<int64_t>& s, const Function& compute) {
  parallel_for(0, s.batch * s.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) compute(row);
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
    using T = decltype(zero);
    const T *token_data = DataOf{tokens}, *other_data = DataOf{others}, *bias_data = DataOf{bias};
    T* product_data = DataOf{products};
    for_rows(s, [&](int64_t row) {
      compute_products(s, row, token_data, other_data, bias_data, T(outside), product_data);
    });
  });
  return products;
}

Tensor sums(const Tensor& weights, const Tensor& tokens, bool transposed) {
  if (is_half_precision(tokens.scalar_type()))
    return sums(weights.to(kFloat), tokens.to(kFloat), transposed).to(tokens.scalar_type());
  const WindowSizes<int64_t> s(tokens, weights.size(4));
  Tensor sums = empty(tokens.sizes(), tokens.options());
  dispatch<float, double>(tokens.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *weight_data = DataOf{weights}, *token_data = DataOf{tokens};
    T* sum_data = DataOf{sums};
    for_rows(s, [&](int64_t row) { compute_sums(s, row, weight_data, token_data, transposed, sum_data); });
  });
  return sums;
}

}  // namespace bioattn_mm::BIOATTN_ISA::sliding_window
