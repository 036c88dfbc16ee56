// The operator cosine_attention for PyTorch: schema, autograd, and kernels for CPU and tracing. On CUDA and in PyTorch,
// bioattn_mm/ops/cosine_attention.py computes the same by aggregated_attention.

#include "aggregated_attention.h"
#include "dispatch.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>

namespace bioattn_mm {
namespace {
namespace of_cosine_attention {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using CosineGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

CpuInputs inputs_of_cpu(
    const Tensor& query, const Tensor& key_value, const Tensor& pooled_key_value, const Tensor& scale,
    const Tensor& query_embedding, const Tensor& window_bias, const Tensor& pooled_bias, const Tensor& pooled_bias_rows,
    const Tensor& pooled_bias_columns, const Tensor& tokens, const Tensor& token_bias) {
  const Tensor tokens_of_window = key_value.contiguous(), pooled_tokens = pooled_key_value.contiguous();
  CpuInputs cpu;
  cpu.query = query.contiguous();
  cpu.key = tokens_of_window.select(3, 0), cpu.value = tokens_of_window.select(3, 1);
  cpu.pooled_key = pooled_tokens.select(3, 0), cpu.pooled_value = pooled_tokens.select(3, 1);
  cpu.window_bias = window_bias.contiguous();
  cpu.pooled_bias = pooled_bias.contiguous();
  cpu.pooled_bias_rows = pooled_bias_rows.contiguous();
  cpu.pooled_bias_columns = pooled_bias_columns.contiguous();
  cpu.scale = scale.contiguous();
  cpu.query_embedding = query_embedding.contiguous();
  cpu.tokens = tokens.contiguous();
  cpu.token_bias = token_bias.contiguous();
  return cpu;
}

template <typename... Tensors>
Forward forward_cpu(const Tensors&... inputs) {
  return attention_forward_cpu(inputs_of_cpu(inputs...));
}

template <typename... Tensors>
CosineGradients backward_cpu(const Tensor& grad_output, const Tensor& logsumexp, const Tensors&... inputs) {
  const auto contiguous_like = [](const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); };
  const auto& [query, key_value, pooled_key_value, scale, embedding, window_bias, pooled_bias, rows, columns, tokens, bias] =
      std::tie(inputs...);
  const Tensor grad_key_value = contiguous_like(key_value), grad_pooled_key_value = contiguous_like(pooled_key_value);
  CpuInputs grad;
  grad.query = contiguous_like(query);
  grad.key = grad_key_value.select(3, 0), grad.value = grad_key_value.select(3, 1);
  grad.pooled_key = grad_pooled_key_value.select(3, 0), grad.pooled_value = grad_pooled_key_value.select(3, 1);
  grad.pooled_bias = contiguous_like(pooled_bias);
  attention_backward_cpu(grad_output.contiguous(), inputs_of_cpu(inputs...), logsumexp, grad);
  return {
      grad.query, grad_key_value, grad_pooled_key_value, grad.scale, grad.query_embedding,
      grad.window_bias, grad.pooled_bias, grad.tokens, grad.token_bias};
}

template <typename... Tensors>
Forward forward_meta(const Tensor& query, const Tensor&, const Tensor&, const Tensor& scale, const Tensors&...) {
  const auto sizes = query.sym_sizes();
  return {shaped_like(query), at::empty_symint({sizes[0], sizes[3], sizes[1], sizes[2]}, scale.options())};
}

template <typename... Tensors>
CosineGradients backward_meta(
    const Tensor&, const Tensor&, const Tensor& query, const Tensor& key_value, const Tensor& pooled_key_value,
    const Tensor& scale, const Tensor& query_embedding, const Tensor& window_bias, const Tensor& pooled_bias,
    const Tensor&, const Tensor&, const Tensor& tokens, const Tensor& token_bias) {
  return {
      shaped_like(query), shaped_like(key_value), shaped_like(pooled_key_value),
      shaped_like(scale), shaped_like(query_embedding), shaped_like(window_bias),
      shaped_like(pooled_bias), shaped_like(tokens), shaped_like(token_bias)};
}

// The operators as PyTorch calls them: eleven inputs, each an argument of its own.
#define BIOATTN_ELEVEN(type) type, type, type, type, type, type, type, type, type, type, type
using Argument = const Tensor&;
using Whole = Tensor(BIOATTN_ELEVEN(Argument));
using ForwardPass = Forward(BIOATTN_ELEVEN(Argument));
using BackwardPass = CosineGradients(Argument, Argument, BIOATTN_ELEVEN(Argument));

// The attention weights are not saved, nor anything else that the backward pass can compute from the projections.
struct CosineAttention : torch::autograd::Function<CosineAttention> {
  template <typename... Tensors>
  static Tensor forward(AutogradContext* context, const Tensors&... inputs) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = find_operator<ForwardPass>("bioattn_mm::cosine_attention_forward");
    auto [output, logsumexp] = op.call(inputs...);
    context->save_for_backward({logsumexp, inputs...});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<BackwardPass>("bioattn_mm::cosine_attention_backward");
    const auto s = context->get_saved_variables();
    const auto [query, key_value, pooled_key_value, scale, embedding, window_bias, pooled_bias, tokens, token_bias] =
        op.call(grad_outputs[0], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11]);
    return {query, key_value, pooled_key_value, scale, embedding, window_bias,
            pooled_bias, Tensor(), Tensor(), tokens, token_bias};
  }
};

template <typename... Tensors>
Tensor with_autograd(const Tensors&... inputs) {
  return CosineAttention::apply(inputs...);
}

template <typename... Tensors>
Tensor without_autograd(const Tensors&... inputs) {
  static const auto op = find_operator<ForwardPass>("bioattn_mm::cosine_attention_forward");
  return std::get<0>(op.call(inputs...));
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  const std::string inputs =
      "Tensor query, Tensor key_value, Tensor pooled_key_value, Tensor scale, Tensor query_embedding, "
      "Tensor window_bias, Tensor pooled_bias, Tensor pooled_bias_rows, Tensor pooled_bias_columns, Tensor tokens, "
      "Tensor token_bias";
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define("cosine_attention(" + inputs + ") -> Tensor");
  define("cosine_attention_forward(" + inputs + ") -> (Tensor, Tensor)");
  define(
      "cosine_attention_backward(Tensor grad_output, Tensor logsumexp, " + inputs +
      ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("cosine_attention", static_cast<Whole*>(without_autograd));
  library.impl("cosine_attention_forward", static_cast<ForwardPass*>(forward_cpu));
  library.impl("cosine_attention_backward", static_cast<BackwardPass*>(backward_cpu));
}

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("cosine_attention", static_cast<Whole*>(without_autograd));
  library.impl("cosine_attention_forward", static_cast<ForwardPass*>(forward_meta));
  library.impl("cosine_attention_backward", static_cast<BackwardPass*>(backward_meta));
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("cosine_attention", static_cast<Whole*>(with_autograd));
  // A second derivative raises an error instead of being silently zero.
  library.impl("cosine_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_cosine_attention
}  // namespace
}  // namespace bioattn_mm
