// Attention with a relative position bias: bioattn_mm/ops/relative_bias_attention.py says what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace bioattn_mm {

// query, key and value are (B, H, W, heads, d), bias is (heads, 2 H - 1, 2 W - 1). All are float32 or all float64, with
// any strides. Gives the output (B, H, W, heads, d), and the logarithm of each softmax's denominator (B, H, W, heads).
std::tuple<at::Tensor, at::Tensor> relative_bias_attention_forward_cpu(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& bias, double scale);

// Gradients of query, key, value and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> relative_bias_attention_backward_cpu(
    const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& output, const at::Tensor& logsumexp, double scale);

}  // namespace bioattn_mm
