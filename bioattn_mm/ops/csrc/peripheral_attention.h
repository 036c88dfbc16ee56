// Peripheral attention (PerViT, eq. 5-8): bioattn_mm/ops/peripheral_attention.py says what it computes.
#pragma once

#include "tensor.h"

namespace bioattn_mm {

// The inputs of the operator in the order of its schema; the same struct holds their gradients.
struct PeripheralInputs {
  static constexpr size_t kTensors = 10;

  // function(query, ..., norm_bias)
  template <typename Function>
  auto apply(const Function& function) const {
    return function(query, key, value, plane, scale, shift, conv_weight, conv_bias, norm_weight, norm_bias);
  }

  Tensor query, key, value;       // (B, heads, H * W, d)
  Tensor plane;                   // (channels, 2 H + 1, 2 W + 1)
  Tensor scale, shift;            // (channels, H, W)
  Tensor conv_weight, conv_bias;  // (heads, channels, 3, 3), (heads)
  Tensor norm_weight, norm_bias;  // (heads)
};

// The output (B, heads, H * W, d), and the logarithm of each softmax's denominator (B, heads, H * W).
using PeripheralForward = std::tuple<Tensor, Tensor>;

// The kernels. All tensors are contiguous and have one dtype, float32 or float64.
using PeripheralAttentionForward = PeripheralForward(const PeripheralInputs& inputs, double eps);
using PeripheralAttentionBackward =
    PeripheralInputs(const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp);

}  // namespace bioattn_mm
