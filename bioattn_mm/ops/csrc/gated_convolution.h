// The gate of ConvGLU (TransNeXt, section 3.2): bioattn_mm/ops/gated_convolution.py says what it computes.
#pragma once

#include "check.h"

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

using GatedConvolutionGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The kernels of a device. x is (B, H, W, 2 C); parameters are float32, or float64 as x. On the CPU all are
// contiguous, C is a multiple of 16, x not float16; on CUDA C is even, x not float64.
using GatedConvolutionForward =
    Tensor(const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias);
using GatedConvolutionBackward = GatedConvolutionGradients(
    const Tensor& grad_output, const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias);

GatedConvolutionForward gated_convolution_forward_cuda;
GatedConvolutionBackward gated_convolution_backward_cuda;

}  // namespace bioattn_mm
