// Aggregated attention (TransNeXt, eq. 10-14): bioattn_mm/ops/aggregated_attention.py says what it computes.
#pragma once

#include "check.h"

#include <torch/headeronly/macros/Macros.h>

namespace bioattn_mm {

// The inputs of the operator in the order of its schema: as tensors, or as pointers to their data.
template <typename Data, typename Indices>
struct InputsOf {
  static constexpr size_t kTensors = 9;

  Data query;                // (B, H, W, heads, d)
  Data key;                  // (B, H, W, heads, d)
  Data value;                // (B, H, W, heads, d)
  Data pooled_key;           // (B, Ph, Pw, heads, d)
  Data pooled_value;         // (B, Ph, Pw, heads, d)
  Data window_bias;          // (heads, k * k)
  Data pooled_bias;          // (heads, R, W, Pw)
  Indices pooled_bias_rows;  // (H, Ph), int64
  Data token_weights;        // (B, H, W, heads, k * k)

  // function(query, ..., token_weights)
  template <typename Function>
  auto apply(const Function& function) const {
    return function(
        query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights);
  }
};

// The floating-point tensors have one dtype. The same struct holds their gradients, without pooled_bias_rows.
using Inputs = InputsOf<Tensor, Tensor>;

// The gradients as PyTorch takes them, without pooled_bias_rows.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <typename Tensors>
Gradients to_gradients(const Tensors& g) {
  return {g.query, g.key, g.value, g.pooled_key, g.pooled_value, g.window_bias, g.pooled_bias, g.token_weights};
}

// Pointers to the data of the inputs, and of their gradients.
template <typename T>
using Pointers = InputsOf<const T*, const int64_t*>;
template <typename T>
using MutablePointers = InputsOf<T*, int64_t*>;

template <typename AnyPointers>
AnyPointers pointers_to(const Inputs& inputs) {
  return inputs.apply([](const auto&... tensors) { return AnyPointers{DataOf{tensors}...}; });
}

template <typename Integer>
struct Sizes : WindowSizes<Integer> {
  template <typename Tensors>
  explicit Sizes(const Tensors& inputs)
      : WindowSizes<Integer>(inputs.query, inputs.window_bias.size(1)),
        pooled_height(inputs.pooled_key.size(1)),
        pooled_width(inputs.pooled_key.size(2)),
        pooled(pooled_height * pooled_width),
        bias_rows(inputs.pooled_bias.size(1)) {}

  // The index of the first bias of row `row` and query column j in (heads, R, W, Pw).
  C10_HOST_DEVICE int64_t bias(Integer head, Integer row, Integer j) const {
    return ((static_cast<int64_t>(head) * bias_rows + row) * this->width + j) * pooled_width;
  }

  Integer pooled_height, pooled_width, pooled;  // Ph, Pw, Ph * Pw
  Integer bias_rows;                            // R
};

// The output (B, H, W, heads, d), and each softmax's log-denominator (B, H, W, heads), float32 for half precision.
using Forward = std::tuple<Tensor, Tensor>;

// The same, and what the output lost when it was rounded to half precision, or no elements. On CUDA the backward pass
// computes the mean of the gradients of a query's weights from the exact output.
using RoundedForward = std::tuple<Tensor, Tensor, Tensor>;

inline ArgumentChecks check_inputs(const Inputs& inputs) {
  const Tensor& query = inputs.query;
  const ArgumentChecks arguments("aggregated_attention", "query", query, 5, "(B, H, W, heads, d)");
  const auto batch = query.size(0), height = query.size(1), width = query.size(2);
  const auto heads = query.size(3), channels = query.size(4);
  arguments.check("key", inputs.key, query.sizes());
  arguments.check("value", inputs.value, query.sizes());
  arguments.check("pooled_key", inputs.pooled_key, {batch, -1, -1, heads, channels});
  arguments.check("pooled_value", inputs.pooled_value, inputs.pooled_key.sizes());
  arguments.check("window_bias", inputs.window_bias, {heads, -1});
  const auto offsets = inputs.window_bias.size(1), pooled_height = inputs.pooled_key.size(1);
  arguments.check_offsets("window_bias", offsets);
  arguments.check("pooled_bias", inputs.pooled_bias, {heads, -1, width, inputs.pooled_key.size(2)});
  arguments.check("pooled_bias_rows", inputs.pooled_bias_rows, {height, pooled_height}, kLong);
  arguments.check("token_weights", inputs.token_weights, {batch, height, width, heads, offsets});
  return arguments;
}

inline void check_aggregated_attention(const Inputs& inputs, bool) { check_inputs(inputs); }

inline void check_aggregated_attention_backward(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding) {
  const ArgumentChecks arguments = check_inputs(inputs);
  const Span sizes = inputs.query.sizes();
  arguments.check("grad_output", grad_output, sizes);
  arguments.check("output", output, sizes);
  arguments.check("logsumexp", logsumexp, sizes.slice(0, 4), full_precision(inputs.query.scalar_type()));
  check_rounding(arguments, rounding, inputs.query);
}

// The inputs of the CPU kernels. Tokens are (B, H, W, heads, d) with any stride from column to column; parameters are
// contiguous, float32 or float64 as the tokens. Without a window (k = 0) its tokens and weights may be undefined.
struct CpuInputs {
  Tensor query, key, value;
  Tensor pooled_key, pooled_value;
  Tensor window_bias;          // (heads, k * k)
  Tensor pooled_bias;          // (heads, R, C)
  Tensor pooled_bias_rows;     // (H, Ph, n), int64: the bias of a pair is a sum of n rows
  Tensor pooled_bias_weights;  // (H, Ph, n - 1), of all rows but the last, which has what is missing to 1; not read
                               // if n = 1
  Tensor pooled_bias_columns;  // (W, Pw), int64
  // Kernels compute these, (B, H, W, heads, k * k), of normalised queries and keys where they are not given.
  Tensor token_weights;
  Tensor scale, query_embedding, tokens, token_bias;  // (heads), (heads, d), (heads, d, k * k), (heads, k * k)
  double query_scale = 1;                             // the factor of all queries that are not normalised
};

// The output is contiguous, logsumexp (B, heads, H, W). The backward pass writes to the given gradients of tokens and
// pooled_bias, and makes the others.
using AttentionForward = Forward(const CpuInputs& inputs);
using AttentionBackward =
    void(const Tensor& grad_output, const CpuInputs& inputs, const Tensor& logsumexp, CpuInputs& gradients);

// The kernels on CUDA take any strides, windows up to 9 x 9, and 8, 16, ... 64 channels a head; no float64.
RoundedForward aggregated_attention_forward_cuda(const Inputs& inputs, bool for_backward);
Gradients aggregated_attention_backward_cuda(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding);

}  // namespace bioattn_mm
