// Aggregated attention from the projections on: bioattn_mm/ops/cosine_attention.py says what it computes.
#pragma once

#include "aggregated_attention.h"

#include <tuple>

namespace bioattn_mm {

// The inputs in the order of the operator's schema. Projections have one dtype; parameters are float32, for float64
// projections float64.
struct CosineInputs {
  Tensor query, key_value, pooled_key_value;   // (B, H, W, heads, d), (B, H, W, 2, heads, d), (B, Ph, Pw, 2, heads, d)
  Tensor scale, query_embedding, window_bias;  // (heads), (heads, d), (heads, k * k)
  Tensor pooled_bias;                          // (heads, R, C)
  Tensor pooled_bias_rows;                     // (H, Ph), int64
  Tensor pooled_bias_columns;                  // (W, Pw), int64
  Tensor tokens, token_bias;                   // (heads, d, k * k), (heads, k * k)
};

// Those of query, key_value, pooled_key_value, scale, query_embedding, window_bias, pooled_bias, tokens and token_bias.
using CosineGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// On CUDA, with the limits of aggregated_attention_forward_cuda.
RoundedForward cosine_attention_forward_cuda(const CosineInputs& inputs, bool for_backward);
CosineGradients cosine_attention_backward_cuda(
    const Tensor& grad_output, const CosineInputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding);

}  // namespace bioattn_mm
