// Aggregated attention (TransNeXt, eq. 10-14): see bioattn_mm/ops/aggregated_attention.py for what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
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
  explicit Sizes(const Inputs& inputs)
      : batch(inputs.query.size(0)),
        height(inputs.query.size(1)),
        width(inputs.query.size(2)),
        heads(inputs.query.size(3)),
        channels(inputs.query.size(4)),
        pooled_height(inputs.pooled_key.size(1)),
        pooled_width(inputs.pooled_key.size(2)),
        pooled(pooled_height * pooled_width),
        window(std::lround(std::sqrt(static_cast<double>(inputs.window_bias.size(1))))),
        offsets(inputs.window_bias.size(1)),
        bias_rows(inputs.pooled_bias.size(1)) {}

  int64_t batch, height, width, heads, channels;
  int64_t pooled_height, pooled_width, pooled;  // pooled = pooled_height * pooled_width
  int64_t window, offsets;                      // side of the window; offsets = window * window
  int64_t bias_rows;                            // R
};

// The data of the inputs.
template <typename T>
struct Pointers {
  explicit Pointers(const Inputs& inputs)
      : query(inputs.query.const_data_ptr<T>()),
        key(inputs.key.const_data_ptr<T>()),
        value(inputs.value.const_data_ptr<T>()),
        pooled_key(inputs.pooled_key.const_data_ptr<T>()),
        pooled_value(inputs.pooled_value.const_data_ptr<T>()),
        window_bias(inputs.window_bias.const_data_ptr<T>()),
        pooled_bias(inputs.pooled_bias.const_data_ptr<T>()),
        pooled_bias_rows(inputs.pooled_bias_rows.const_data_ptr<int64_t>()),
        token_weights(inputs.token_weights.const_data_ptr<T>()) {}

  const T *query, *key, *value, *pooled_key, *pooled_value, *window_bias, *pooled_bias;
  const int64_t* pooled_bias_rows;
  const T* token_weights;
};

// Output (B, H, W, heads, d), and the logarithm of each softmax's denominator (B, H, W, heads), float32 for half
// precision.
using Forward = std::tuple<Tensor, Tensor>;

// Gradients of the inputs in their order, without pooled_bias_rows.
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward aggregated_attention_forward_cpu(const Inputs& inputs);
Backward aggregated_attention_backward_cpu(const Tensor& grad_output, const Inputs& inputs, const Tensor& logsumexp);

// Windows of at most 9 x 9, a multiple of 8 up to 64 channels, no float64.
Forward aggregated_attention_forward_cuda(const Inputs& inputs);
Backward aggregated_attention_backward_cuda(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp);

}  // namespace bioattn_mm
