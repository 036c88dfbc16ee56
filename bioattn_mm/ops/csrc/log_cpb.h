// Table of the log-spaced position bias: bioattn_mm/ops/log_cpb.py says what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace bioattn_mm {

// vertical (R, hidden), horizontal (C, hidden), weight (heads, hidden), bias (heads); gives (heads, R, C).
at::Tensor log_cpb_table_forward_cpu(
    const at::Tensor& vertical, const at::Tensor& horizontal, const at::Tensor& weight, const at::Tensor& bias);

// Gradients of vertical, horizontal and weight.
std::tuple<at::Tensor, at::Tensor, at::Tensor> log_cpb_table_backward_cpu(
    const at::Tensor& grad_table, const at::Tensor& vertical, const at::Tensor& horizontal, const at::Tensor& weight);

}  // namespace bioattn_mm
