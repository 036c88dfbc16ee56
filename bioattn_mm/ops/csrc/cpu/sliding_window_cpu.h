// The sliding window on the CPU. One thread computes an output: sums do not depend on the number of threads.
#pragma once

#include "kernels.h"

namespace bioattn_mm::BIOATTN_ISA::sliding_window {
namespace {

// Calls function(head, token, offset, other) for the tokens of a row, counted through all images, and their windows.
template <typename Function>
BIOATTN_INLINE void for_pairs(const WindowSizes<int64_t>& s, int64_t row, const Function& function) {
  const int64_t i = row % s.height, margin = s.window / 2;
  for (int64_t j = 0; j < s.width; ++j)
    for (int64_t head = 0; head < s.heads; ++head)
      for (int64_t dy = std::max(-margin, -i); dy <= std::min(margin, s.height - 1 - i); ++dy)
        for (int64_t dx = std::max(-margin, -j); dx <= std::min(margin, s.width - 1 - j); ++dx)
          function(
              head, (row * s.width + j) * s.heads + head, (dy + margin) * s.window + dx + margin,
              ((row + dy) * s.width + j + dx) * s.heads + head);
}

template <typename T>
BIOATTN_KERNEL void compute_products(
    const WindowSizes<int64_t>& s, int64_t row, const T* tokens, const T* others, const T* bias, T outside,
    T* products) {
  const int64_t size = s.width * s.heads * s.offsets;
  std::fill_n(products + row * size, size, outside);
  for_pairs(s, row, [&](int64_t head, int64_t token, int64_t offset, int64_t other) {
    T& product = products[token * s.offsets + offset];
    product = dot(tokens + token * s.channels, others + other * s.channels, s.channels);
    if (bias) product += bias[head * s.offsets + offset];
  });
}

template <typename T>
BIOATTN_KERNEL void compute_sums(
    const WindowSizes<int64_t>& s, int64_t row, const T* weights, const T* tokens, bool transposed, T* sums) {
  const int64_t size = s.width * s.heads * s.channels;
  std::fill_n(sums + row * size, size, T(0));
  for_pairs(s, row, [&](int64_t, int64_t token, int64_t offset, int64_t other) {
    // This token has the opposite offset in the window of the other one.
    const int64_t weight = transposed ? other * s.offsets + s.offsets - 1 - offset : token * s.offsets + offset;
    add_scaled(sums + token * s.channels, weights[weight], tokens + other * s.channels, s.channels);
  });
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
