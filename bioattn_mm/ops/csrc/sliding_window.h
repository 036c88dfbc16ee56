// The two operators of the sliding window: bioattn_mm/ops/sliding_window.py says what they compute.
#pragma once

#include "boxed.h"
#include "check.h"

#include <limits>

namespace bioattn_mm {

// The kernels of a device, for contiguous tensors of one dtype. Dot products of each token with the `others` in its
// window, plus a bias (heads, k * k) or none: (B, H, W, heads, k * k), `outside` where the window leaves the image.
using WindowProducts =
    Tensor(const Tensor& tokens, const Tensor& others, const Tensor& bias, int64_t offsets, double outside);
// Sums of the tokens in each token's window, weighted (B, H, W, heads, k * k). `transposed` gives the transposed map:
// each token sums up the tokens in whose windows it is, by the weights that it has there.
using WindowSums = Tensor(const Tensor& weights, const Tensor& tokens, bool transposed);

WindowProducts window_products_cuda;
WindowSums window_sums_cuda;

inline ArgumentChecks check_qk_inputs(const Tensor& query, const Tensor& key) {
  const ArgumentChecks arguments("sliding_window_qk", "query", query, 5, "(B, H, W, heads, d)");
  arguments.check("key", key, query.sizes());
  return arguments;
}

inline void check_qk(const Tensor& query, const Tensor& key, const Tensor& bias) {
  const ArgumentChecks arguments = check_qk_inputs(query, key);
  arguments.check("bias", bias, {query.size(3), -1});
  arguments.check_offsets("bias", bias.size(1));
}

inline void check_qk_backward(const Tensor& grad_logits, const Tensor& query, const Tensor& key) {
  const ArgumentChecks arguments = check_qk_inputs(query, key);
  arguments.check("grad_logits", grad_logits, {query.size(0), query.size(1), query.size(2), query.size(3), -1});
  arguments.check_offsets("grad_logits", grad_logits.size(4));
}

inline ArgumentChecks check_av(const Tensor& weights, const Tensor& value) {
  const ArgumentChecks arguments("sliding_window_av", "value", value, 5, "(B, H, W, heads, d)");
  arguments.check("weights", weights, {value.size(0), value.size(1), value.size(2), value.size(3), -1});
  arguments.check_offsets("weights", weights.size(4));
  return arguments;
}

inline void check_av_backward(const Tensor& grad_output, const Tensor& weights, const Tensor& value) {
  const ArgumentChecks arguments = check_av(weights, value);
  arguments.check("grad_output", grad_output, value.sizes());
}

// The operators and their gradients, by the kernels of a device.
template <WindowProducts products, WindowSums sums>
struct SlidingWindow {
  static Tensor qk(const Tensor& query, const Tensor& key, const Tensor& bias) {
    return products(
        query.contiguous(), key.contiguous(), bias.contiguous(), bias.size(1),
        -std::numeric_limits<double>::infinity());
  }

  static std::tuple<Tensor, Tensor, Tensor> qk_backward(
      const Tensor& grad_logits, const Tensor& query, const Tensor& key) {
    const Tensor weights = grad_logits.contiguous();
    return {sums(weights, key.contiguous(), false), sums(weights, query.contiguous(), true), bias_gradient(weights)};
  }

  // Gradient of the bias: that of the logits summed over the tokens, without logits outside of the image.
  static Tensor bias_gradient(const Tensor& grad_logits) {
    const Options options = grad_logits.options();
    const Tensor ones = torch::stable::full(
        {1, grad_logits.size(1), grad_logits.size(2), 1, 1}, 1, options.scalar_type, std::nullopt, options.device);
    const Tensor inside = products(ones, ones, Tensor(), grad_logits.size(4), 0.).to(kBool);
    return call("aten::where", "self", inside, grad_logits, zeros({1}, options)).sum({0, 1, 2});
  }

  static Tensor av(const Tensor& weights, const Tensor& value) {
    return sums(weights.contiguous(), value.contiguous(), false);
  }

  static std::tuple<Tensor, Tensor> av_backward(
      const Tensor& grad_output, const Tensor& weights, const Tensor& value) {
    const Tensor grad = grad_output.contiguous();
    return {
        products(grad, value.contiguous(), Tensor(), weights.size(4), 0.), sums(weights.contiguous(), grad, true)};
  }

  static void add_to(torch::stable::detail::StableLibrary& library) {
    library.impl("sliding_window_qk", boxed<checked<qk, check_qk>>);
    library.impl("sliding_window_qk_backward", boxed<checked<qk_backward, check_qk_backward>>);
    library.impl("sliding_window_av", boxed<checked<av, check_av>>);
    library.impl("sliding_window_av_backward", boxed<checked<av_backward, check_av_backward>>);
  }
};

}  // namespace bioattn_mm
