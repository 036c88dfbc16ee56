// The two operators of the sliding window: bioattn_mm/ops/sliding_window.py says what they compute.
#pragma once

#include "window_sizes.h"

#include <ATen/ops/arange.h>

#include <limits>
#include <tuple>

namespace bioattn_mm {

// The kernels of a device. All tensors are contiguous and have one floating-point dtype.
//
// Dot products of each token with the `others` in its window, plus a bias (heads, k * k) if it is defined:
// (B, H, W, heads, k * k), with the value `outside` where the window leaves the image.
using WindowProducts = at::Tensor(
    const at::Tensor& tokens, const at::Tensor& others, const at::Tensor& bias, int64_t offsets, double outside);
// Weighted sums of the tokens in each token's window, by its weights (B, H, W, heads, k * k): (B, H, W, heads, d).
// `transposed` gives the transposed linear map, as gradients need it: each token sums up the tokens in whose windows it
// is, by the weights that it has in those windows.
using WindowSums = at::Tensor(const at::Tensor& weights, const at::Tensor& tokens, bool transposed);

WindowProducts window_products_cpu, window_products_cuda;
WindowSums window_sums_cpu, window_sums_cuda;

// Gradient of the bias: that of the logits summed over the tokens, without logits outside of the image.
inline at::Tensor window_bias_gradient(const at::Tensor& grad_logits) {
  const WindowSizes<int64_t> s(grad_logits, grad_logits.size(4));
  const auto outside = [&](int64_t length) {
    const auto integers = grad_logits.options().dtype(at::kLong);
    const at::Tensor from_token = at::arange(-(s.window / 2), s.window / 2 + 1, integers);
    const at::Tensor position = at::arange(length, integers).unsqueeze(1).add(from_token);
    return position.lt(0).logical_or(position.ge(length));  // (length, k)
  };
  const at::Tensor rows = outside(s.height).view({s.height, 1, s.window, 1});
  const at::Tensor columns = outside(s.width).view({s.width, 1, s.window});
  const at::Tensor mask = rows.logical_or(columns).view({s.height, s.width, 1, s.offsets});
  return grad_logits.masked_fill(mask, 0).sum({0, 1, 2});
}

// The operators and their gradients, by the kernels of a device.
template <WindowProducts products, WindowSums sums>
struct SlidingWindow {
  using Tensor = at::Tensor;

  static Tensor qk(const Tensor& query, const Tensor& key, const Tensor& bias) {
    return products(
        query.contiguous(), key.contiguous(), bias.contiguous(), bias.size(1), -std::numeric_limits<double>::infinity());
  }

  // Gradients of query, key and bias.
  static std::tuple<Tensor, Tensor, Tensor> qk_backward(
      const Tensor& grad_logits, const Tensor& query, const Tensor& key) {
    const Tensor weights = grad_logits.contiguous();
    return {
        sums(weights, key.contiguous(), false), sums(weights, query.contiguous(), true), window_bias_gradient(weights)};
  }

  static Tensor av(const Tensor& weights, const Tensor& value) {
    return sums(weights.contiguous(), value.contiguous(), false);
  }

  // Gradients of weights and value.
  static std::tuple<Tensor, Tensor> av_backward(
      const Tensor& grad_output, const Tensor& weights, const Tensor& value) {
    const Tensor grad = grad_output.contiguous();
    return {products(grad, value.contiguous(), Tensor(), weights.size(4), 0.), sums(weights.contiguous(), grad, true)};
  }
};

}  // namespace bioattn_mm
