// Table of the log-spaced position bias: bioattn_mm/ops/log_cpb.py says what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace bioattn_mm {

// The kernels of a device. All tensors have one floating-point dtype, float32 or float64.
//
// vertical (R) and horizontal (C) coordinates, hidden_weight (hidden, 2), hidden_bias (hidden), weight (heads, hidden),
// bias (heads); gives (heads, R, C).
using LogCPBForward = at::Tensor(
    const at::Tensor& vertical, const at::Tensor& horizontal, const at::Tensor& hidden_weight,
    const at::Tensor& hidden_bias, const at::Tensor& weight, const at::Tensor& bias);
// Gradients of hidden_weight, hidden_bias, weight and bias.
using LogCPBGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using LogCPBBackward = LogCPBGradients(
    const at::Tensor& grad_table, const at::Tensor& vertical, const at::Tensor& horizontal,
    const at::Tensor& hidden_weight, const at::Tensor& hidden_bias, const at::Tensor& weight);

LogCPBForward log_cpb_table_forward_cpu, log_cpb_table_forward_cuda;
LogCPBBackward log_cpb_table_backward_cpu, log_cpb_table_backward_cuda;

}  // namespace bioattn_mm
