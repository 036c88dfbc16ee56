// Layer normalisation of bfloat16 tokens: bioattn_mm/ops/layer_norm.py says why it is here.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace bioattn_mm {

// Whether the kernels below can run: the processor has the instructions, and a token fills a vector.
bool layer_norm_can_run_cpu(const at::Tensor& x);

// x is (..., C) in bfloat16, weight and bias are (C) in float32; all are contiguous. Returns the output, and mean and
// inverse standard deviation of each token, (..., 1) in float32.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward_cpu(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
// The gradients of x, weight and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward_cpu(
    const at::Tensor& grad_output, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& inverse_deviation,
    const at::Tensor& weight);

}  // namespace bioattn_mm
