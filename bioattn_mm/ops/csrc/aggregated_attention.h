// Aggregated attention (TransNeXt, eq. 10-14): see bioattn_mm/ops/aggregated_attention.py for what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace bioattn_mm {

using at::Tensor;

// Inputs of the operator, in the order of its schema. All are contiguous and of one floating dtype, but for
// pooled_bias_rows, which is int64.
struct Inputs {
  Tensor query;             // (B, H, W, heads, d)
  Tensor key;               // (B, H, W, heads, d)
  Tensor value;             // (B, H, W, heads, d)
  Tensor pooled_key;        // (B, Ph, Pw, heads, d)
  Tensor pooled_value;      // (B, Ph, Pw, heads, d)
  Tensor window_bias;       // (heads, k * k)
  Tensor pooled_bias;       // (heads, R, W, Pw)
  Tensor pooled_bias_rows;  // (H, Ph)
  Tensor token_weights;     // (B, H, W, heads, k * k)
};

struct Sizes {
  explicit Sizes(const Inputs& inputs);

  int64_t batch, height, width, heads, channels;
  int64_t pooled_height, pooled_width, pooled;  // pooled = pooled_height * pooled_width
  int64_t window, offsets;                      // side of the window; offsets = window * window
  int64_t bias_rows;                            // R
};

// Output (B, H, W, heads, d), and the logarithm of each softmax's denominator (B, H, W, heads).
using Forward = std::tuple<Tensor, Tensor>;

// Gradients of the inputs in their order, without pooled_bias_rows.
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward aggregated_attention_forward_cpu(const Inputs& inputs);
Backward aggregated_attention_backward_cpu(const Tensor& grad_output, const Inputs& inputs, const Tensor& logsumexp);

}  // namespace bioattn_mm
