// Aggregated attention from the projections on: bioattn_mm/ops/cosine_attention.py says what it computes.
#pragma once

#include "aggregated_attention.h"

namespace bioattn_mm {

// The inputs in the order of the schema. Parameters are float32, or float64 for float64 projections.
struct CosineInputs {
  static constexpr size_t kTensors = 12;

  // function(query, ..., token_bias)
  template <typename Function>
  auto apply(const Function& function) const {
    return function(
        query, key_value, pooled_key_value, scale, query_embedding, window_bias, pooled_bias, pooled_bias_rows,
        pooled_bias_weights, pooled_bias_columns, tokens, token_bias);
  }

  StridedTokens query, key_value;              // (B, H, W, heads, d), (B, H, W, 2, heads, d)
  Tensor pooled_key_value;                     // (B, Ph, Pw, 2, heads, d)
  Tensor scale, query_embedding, window_bias;  // (heads), (heads, d), (heads, k * k)
  Tensor pooled_bias;                          // (heads, R, C)
  Tensor pooled_bias_rows;                     // (H, Ph, n), int64
  Tensor pooled_bias_weights;                  // (H, Ph, n - 1)
  Tensor pooled_bias_columns;                  // (W, Pw), int64
  Tensor tokens, token_bias;                   // (heads, d, k * k), (heads, k * k)
};

// The gradients as PyTorch takes them, without those of indices and weights.
using CosineGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

inline CosineGradients to_gradients(const CosineInputs& g) {
  return {g.query,       g.key_value,   g.pooled_key_value, g.scale,     g.query_embedding,
          g.window_bias, g.pooled_bias, g.tokens,           g.token_bias};
}

inline ArgumentChecks check_inputs(const CosineInputs& inputs) {
  const Tensor& query = inputs.query;
  const ArgumentChecks arguments("cosine_attention", "query", query, 5, "(B, H, W, heads, d)");
  const auto batch = query.size(0), height = query.size(1), width = query.size(2);
  const auto heads = query.size(3), channels = query.size(4);
  const auto dtype = full_precision(query.scalar_type());
  arguments.check("key_value", inputs.key_value, {batch, height, width, 2, heads, channels});
  arguments.check("pooled_key_value", inputs.pooled_key_value, {batch, -1, -1, 2, heads, channels});
  arguments.check("scale", inputs.scale, {heads}, dtype);
  arguments.check("query_embedding", inputs.query_embedding, {heads, channels}, dtype);
  arguments.check("window_bias", inputs.window_bias, {heads, -1}, dtype);
  const auto offsets = inputs.window_bias.size(1);
  arguments.check_offsets("window_bias", offsets);
  arguments.check("pooled_bias", inputs.pooled_bias, {heads, -1, -1}, dtype);
  const auto pooled_height = inputs.pooled_key_value.size(1), pooled_width = inputs.pooled_key_value.size(2);
  arguments.check_rows(
      {"pooled_bias_rows", "pooled_bias_weights"}, inputs.pooled_bias_rows, inputs.pooled_bias_weights,
      {height, pooled_height}, dtype);
  arguments.check("pooled_bias_columns", inputs.pooled_bias_columns, {width, pooled_width}, kLong);
  arguments.check("tokens", inputs.tokens, {heads, channels, offsets}, dtype);
  arguments.check("token_bias", inputs.token_bias, {heads, offsets}, dtype);
  return arguments;
}

inline void check_cosine_attention(const CosineInputs& inputs, bool) { check_inputs(inputs); }

inline void check_cosine_attention_backward(
    const Tensor& grad_output, const CosineInputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding) {
  const Span sizes = inputs.query.sizes();
  const ArgumentChecks arguments = check_inputs(inputs);
  arguments.check("grad_output", grad_output, sizes);
  arguments.check("output", output, sizes);
  arguments.check("logsumexp", logsumexp, {sizes[0] * sizes[1] * sizes[2] * sizes[3]}, inputs.scale.scalar_type());
  check_rounding(arguments, rounding, inputs.query);
}

// The kernels on CUDA, with the limits of aggregated_attention_forward_cuda.
RoundedForward cosine_attention_forward_cuda(const CosineInputs& inputs, bool for_backward);
CosineGradients cosine_attention_backward_cuda(
    const Tensor& grad_output, const CosineInputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding);

}  // namespace bioattn_mm
