// Aggregated attention (TransNeXt, eq. 10-14): bioattn_mm/ops/aggregated_attention.py says what it computes.
#pragma once

#include "check.h"
#include "window_sizes.h"

#include <torch/headeronly/macros/Macros.h>

#include <tuple>
#include <type_traits>
#include <vector>

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
  // {function(query), ..., function(token_weights)}
  template <typename Function>
  InputsOf map(const Function& function) const {
    return apply([&](const auto&... inputs) { return InputsOf{function(inputs)...}; });
  }
};

// All but pooled_bias_rows have one floating-point dtype. The same struct holds their gradients: pooled_bias_rows has
// none, and is undefined there.
using Inputs = InputsOf<Tensor, Tensor>;

// The gradients as PyTorch takes them, without pooled_bias_rows.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

inline Gradients to_gradients(const Inputs& g) {
  return {g.query, g.key, g.value, g.pooled_key, g.pooled_value, g.window_bias, g.pooled_bias, g.token_weights};
}

// Pointers to the data of the inputs, and of their gradients.
template <typename T>
using Pointers = InputsOf<const T*, const int64_t*>;
template <typename T>
using MutablePointers = InputsOf<T*, int64_t*>;

// Converts to a pointer to the tensor's data, of the type that is asked for; null if the tensor is undefined.
struct DataOf {
  template <typename Pointer>
  operator Pointer() const {
    using T = std::remove_pointer_t<Pointer>;
    if (!tensor.defined()) return nullptr;
    if constexpr (std::is_const_v<T>)
      return tensor.const_data_ptr<std::remove_const_t<T>>();
    else
      return tensor.mutable_data_ptr<T>();
  }

  const Tensor& tensor;
};

template <typename AnyPointers>
AnyPointers pointers_to(const Inputs& inputs) {
  return inputs.apply([](const auto&... tensors) { return AnyPointers{DataOf{tensors}...}; });
}

template <typename Integer>
struct Sizes : WindowSizes<Integer> {
  explicit Sizes(const Inputs& inputs)
      : WindowSizes<Integer>(inputs.query, inputs.window_bias.size(1)),
        pooled_height(inputs.pooled_key.size(1)),
        pooled_width(inputs.pooled_key.size(2)),
        pooled(pooled_height * pooled_width),
        bias_rows(inputs.pooled_bias.size(1)) {}

  // The index of a token and head in (B, H, W, heads).
  C10_HOST_DEVICE int64_t token(Integer image, Integer head, Integer i, Integer j) const {
    return ((static_cast<int64_t>(image) * this->height + i) * this->width + j) * this->heads + head;
  }
  // The index of a pooled token and head in (B, Ph, Pw, heads).
  C10_HOST_DEVICE int64_t pooled_token(Integer image, Integer head, Integer u, Integer v) const {
    return ((static_cast<int64_t>(image) * pooled_height + u) * pooled_width + v) * this->heads + head;
  }
  // The index of the first bias of row `row` and query column j in (heads, R, W, Pw).
  C10_HOST_DEVICE int64_t bias(Integer head, Integer row, Integer j) const {
    return ((static_cast<int64_t>(head) * bias_rows + row) * this->width + j) * pooled_width;
  }

  Integer pooled_height, pooled_width, pooled;  // Ph, Pw, Ph * Pw
  Integer bias_rows;                            // R
};

// The output (B, H, W, heads, d), and the logarithm of each softmax's denominator (B, H, W, heads), which is float32
// for half precision.
using Forward = std::tuple<Tensor, Tensor>;

// The same, and the rounding: what the output lost when it was rounded to half precision. On CUDA the backward pass
// needs the output without this loss, because it computes the mean of the gradients of a query's weights from it. The
// rounding has no elements where nothing is rounded.
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

// The inputs of the CPU kernels that aggregated_attention, cosine_attention and, in bfloat16, relative_bias_attention
// share. Tokens are (B, H, W, heads, d) in one dtype, with any stride from column to column; parameters are
// contiguous, float32 or for float64 tokens float64. Without a window, k = 0, keys, values and token weights are not
// needed.
struct CpuInputs {
  Tensor query, key, value;
  Tensor pooled_key, pooled_value;
  Tensor window_bias;          // (heads, k * k)
  Tensor pooled_bias;          // (heads, R, C)
  Tensor pooled_bias_rows;     // (H, Ph), int64
  Tensor pooled_bias_columns;  // (W, Pw), int64
  // Either the token weights, (B, H, W, heads, k * k), are given, or the parameters that they and the scaled queries
  // are computed from. Then queries and keys are not unit vectors yet.
  Tensor token_weights;
  Tensor scale, query_embedding, tokens, token_bias;  // (heads), (heads, d), (heads, d, k * k), (heads, k * k)
};

// The output is contiguous, logsumexp (B, heads, H, W). The backward pass writes the gradients of the tokens and of
// pooled_bias to tensors that are given, and adds those of the other parameters.
using AttentionForward = Forward(const CpuInputs& inputs);
using AttentionBackward =
    void(const Tensor& grad_output, const CpuInputs& inputs, const Tensor& logsumexp, CpuInputs& gradients);

// The kernels on CUDA, for tensors of any strides: at most 9 x 9 tokens in a window and 64 channels in a head, a
// multiple of 8; no float64. `for_backward` says whether the rounding is needed.
RoundedForward aggregated_attention_forward_cuda(const Inputs& inputs, bool for_backward);
Inputs aggregated_attention_backward_cuda(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding);

}  // namespace bioattn_mm
