// The gate of ConvGLU (TransNeXt, section 3.2): bioattn_mm/ops/gated_convolution.py says what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace bioattn_mm {

// The gradients of x, x_bias, weight and bias.
using GatedConvolutionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// x is (B, H, W, 2 C), no float16, with C a multiple of 16; x_bias (2 C), weight (C, 1, 3, 3) and bias (C) are float32,
// for float64 x float64; all are contiguous.
at::Tensor gated_convolution_forward_cpu(
    const at::Tensor& x, const at::Tensor& x_bias, const at::Tensor& weight, const at::Tensor& bias);
GatedConvolutionGradients gated_convolution_backward_cpu(
    const at::Tensor& grad_output, const at::Tensor& x, const at::Tensor& x_bias, const at::Tensor& weight,
    const at::Tensor& bias);

// x is (B, H, W, 2 C), float32, float16 or bfloat16, with C even; the others are float32. Without x_bias nothing is added,
// and its gradient is that of zeros.
at::Tensor gated_convolution_forward_cuda(
    const at::Tensor& x, const std::optional<at::Tensor>& x_bias, const at::Tensor& weight, const at::Tensor& bias);
GatedConvolutionGradients gated_convolution_backward_cuda(
    const at::Tensor& grad_output, const at::Tensor& x, const std::optional<at::Tensor>& x_bias,
    const at::Tensor& weight, const at::Tensor& bias);

}  // namespace bioattn_mm
