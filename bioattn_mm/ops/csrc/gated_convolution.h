// The gate of ConvGLU (TransNeXt, section 3.2): bioattn_mm/ops/gated_convolution.py says what it computes.
#pragma once

#include "check.h"

#include <optional>
#include <tuple>

namespace bioattn_mm {

inline ArgumentChecks check_gated_convolution(
    const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  const ArgumentChecks arguments("gated_convolution", "x", x, 4, "(B, H, W, 2 C)");
  const int64_t channels = x.size(3) / 2;
  check_value(
      channels > 0 && x.size(3) == 2 * channels, "gated_convolution: x must be (B, H, W, 2 C), got ",
      text_of_sizes(x.sizes()));
  const auto dtype = full_precision(x.scalar_type());
  if (x_bias) arguments.check("x_bias", *x_bias, {2 * channels}, dtype);
  arguments.check("weight", weight, {channels, 1, 3, 3}, dtype);
  arguments.check("bias", bias, {channels}, dtype);
  return arguments;
}

inline void check_gated_convolution_backward(
    const Tensor& grad_output, const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias) {
  const ArgumentChecks arguments = check_gated_convolution(x, x_bias, weight, bias);
  arguments.check("grad_output", grad_output, {x.size(0), x.size(1), x.size(2), weight.size(0)});
}

// The gradients of x, x_bias, weight and bias.
using GatedConvolutionGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// x is (B, H, W, 2 C), no float16, with C a multiple of 16; x_bias (2 C), weight (C, 1, 3, 3) and bias (C) are
// float32, for float64 x float64; all are contiguous.
using GatedConvolutionForward =
    Tensor(const Tensor& x, const Tensor& x_bias, const Tensor& weight, const Tensor& bias);
using GatedConvolutionBackward = GatedConvolutionGradients(
    const Tensor& grad_output, const Tensor& x, const Tensor& x_bias, const Tensor& weight, const Tensor& bias);

// x is (B, H, W, 2 C), float32, float16 or bfloat16, with C even; the others are float32. Without x_bias nothing is
// added, and its gradient is that of zeros.
Tensor gated_convolution_forward_cuda(
    const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias);
GatedConvolutionGradients gated_convolution_backward_cuda(
    const Tensor& grad_output, const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias);

}  // namespace bioattn_mm
