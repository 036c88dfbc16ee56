// Attention with a relative position bias: bioattn_mm/ops/relative_bias_attention.py says what it computes.
#pragma once

#include "tensor.h"

#include <tuple>

namespace bioattn_mm {

// query, key and value are (B, H, W, heads, d), bias is (heads, 2 H - 1, 2 W - 1). All are float32 or all float64,
// with any strides. Gives the output (B, H, W, heads, d), and the logarithm of each softmax's denominator (B, H, W,
// heads).
using RelativeBiasAttentionForward = std::tuple<Tensor, Tensor>(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale);

// Gradients of query, key, value and bias.
using RelativeBiasAttentionBackward = std::tuple<Tensor, Tensor, Tensor, Tensor>(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& output, const Tensor& logsumexp, double scale);

}  // namespace bioattn_mm
