// The operator cosine_attention for PyTorch: schema, autograd, and kernels for CPU, CUDA and tracing.

#include "cosine_attention.h"

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

CpuInputs inputs_of_cpu(const CosineInputs& inputs) {
  const Tensor tokens_of_window = inputs.key_value.contiguous(), pooled_tokens = inputs.pooled_key_value.contiguous();
  CpuInputs cpu;
  cpu.query = inputs.query.contiguous();
  cpu.key = tokens_of_window.select(3, 0), cpu.value = tokens_of_window.select(3, 1);
  cpu.pooled_key = pooled_tokens.select(3, 0), cpu.pooled_value = pooled_tokens.select(3, 1);
  cpu.window_bias = inputs.window_bias.contiguous();
  cpu.pooled_bias = inputs.pooled_bias.contiguous();
  cpu.pooled_bias_rows = inputs.pooled_bias_rows.contiguous();
  cpu.pooled_bias_columns = inputs.pooled_bias_columns.contiguous();
  cpu.scale = inputs.scale.contiguous();
  cpu.query_embedding = inputs.query_embedding.contiguous();
  cpu.tokens = inputs.tokens.contiguous();
  cpu.token_bias = inputs.token_bias.contiguous();
  return cpu;
}

// The logsumexp is in the order that the device's kernels have, so PyTorch is told only how many numbers there are. The
// rounding is written and read on CUDA alone.
RoundedForward forward_cpu(const CosineInputs& inputs, bool) {
  const auto [output, logsumexp] = attention_forward_cpu(inputs_of_cpu(inputs));
  return {output, logsumexp.view(-1), empty_rounding(inputs.query)};
}

CosineGradients backward_cpu(
    const Tensor& grad_output, const CosineInputs& inputs, const Tensor&, const Tensor& logsumexp, const Tensor&) {
  const auto contiguous_like = [](const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); };
  const Tensor grad_key_value = contiguous_like(inputs.key_value);
  const Tensor grad_pooled_key_value = contiguous_like(inputs.pooled_key_value);
  CpuInputs grad;
  grad.query = contiguous_like(inputs.query);
  grad.key = grad_key_value.select(3, 0), grad.value = grad_key_value.select(3, 1);
  grad.pooled_key = grad_pooled_key_value.select(3, 0), grad.pooled_value = grad_pooled_key_value.select(3, 1);
  grad.pooled_bias = contiguous_like(inputs.pooled_bias);
  const auto sizes = inputs.query.sizes();
  attention_backward_cpu(
      grad_output.contiguous(), inputs_of_cpu(inputs), logsumexp.view({sizes[0], sizes[3], sizes[1], sizes[2]}), grad);
  return {
      grad.query, grad_key_value, grad_pooled_key_value, grad.scale, grad.query_embedding,
      grad.window_bias, grad.pooled_bias, grad.tokens, grad.token_bias};
}

RoundedForward forward_meta(const CosineInputs& inputs, bool) {
  const Tensor& query = inputs.query;
  const auto sizes = query.sym_sizes();
  const Tensor logsumexp = at::empty_symint({sizes[0] * sizes[1] * sizes[2] * sizes[3]}, inputs.scale.options());
  return {shaped_like(query), logsumexp, empty_rounding(query)};
}

CosineGradients backward_meta(
    const Tensor&, const CosineInputs& inputs, const Tensor&, const Tensor&, const Tensor&) {
  return {
      shaped_like(inputs.query), shaped_like(inputs.key_value), shaped_like(inputs.pooled_key_value),
      shaped_like(inputs.scale), shaped_like(inputs.query_embedding), shaped_like(inputs.window_bias),
      shaped_like(inputs.pooled_bias), shaped_like(inputs.tokens), shaped_like(inputs.token_bias)};
}

#ifdef BIOATTN_WITH_CUDA
RoundedForward forward_cuda(const CosineInputs& inputs, bool for_backward) {
  const auto [output, logsumexp, rounding] = cosine_attention_forward_cuda(inputs, for_backward);
  return {output, logsumexp.view(-1), rounding};
}

CosineGradients backward_cuda(
    const Tensor& grad_output, const CosineInputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding) {
  const Tensor shaped = logsumexp.view(inputs.query.sizes().slice(0, 4));
  return cosine_attention_backward_cuda(grad_output, inputs, output, shaped, rounding);
}
#endif

// The operators as PyTorch calls them: eleven inputs, each an argument of its own.
#define BIOATTN_ELEVEN(type) type, type, type, type, type, type, type, type, type, type, type
using Argument = const Tensor&;
using Whole = Tensor(BIOATTN_ELEVEN(Argument));
using ForwardPass = RoundedForward(BIOATTN_ELEVEN(Argument));
using BackwardPass = CosineGradients(Argument, Argument, Argument, Argument, BIOATTN_ELEVEN(Argument));

// The attention weights are not saved, nor anything else that the backward pass can compute from the projections.
struct CosineAttention : torch::autograd::Function<CosineAttention> {
  template <typename... Tensors>
  static Tensor forward(AutogradContext* context, const Tensors&... inputs) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = find_operator<ForwardPass>("bioattn_mm::cosine_attention_forward");
    auto [output, logsumexp, rounding] = op.call(inputs...);
    context->save_for_backward({output, logsumexp, rounding, inputs...});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<BackwardPass>("bioattn_mm::cosine_attention_backward");
    const auto s = context->get_saved_variables();
    const auto [query, key_value, pooled_key_value, scale, embedding, window_bias, pooled_bias, tokens, token_bias] =
        op.call(
            grad_outputs[0], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13]);
    return {query, key_value, pooled_key_value, scale, embedding, window_bias,
            pooled_bias, Tensor(), Tensor(), tokens, token_bias};
  }
};

template <typename... Tensors>
Tensor with_autograd(const Tensors&... inputs) {
  if (at::GradMode::is_enabled()) return CosineAttention::apply(inputs...);
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = find_operator<Whole>("bioattn_mm::cosine_attention");
  return op.call(inputs...);
}

template <auto forward, typename... Tensors>
Tensor without_autograd(const Tensors&... inputs) {
  return std::get<0>(forward(CosineInputs{inputs...}, /*for_backward=*/false));
}

template <auto forward, typename... Tensors>
RoundedForward for_backward(const Tensors&... inputs) {
  return forward(CosineInputs{inputs...}, /*for_backward=*/true);
}

template <auto backward, typename... Tensors>
CosineGradients backward_of(
    const Tensor& grad_output, const Tensor& output, const Tensor& logsumexp, const Tensor& rounding,
    const Tensors&... inputs) {
  return backward(grad_output, CosineInputs{inputs...}, output, logsumexp, rounding);
}

template <auto forward, auto backward>
void register_kernels(torch::Library& library) {
  library.impl("cosine_attention", static_cast<Whole*>(without_autograd<forward>));
  library.impl("cosine_attention_forward", static_cast<ForwardPass*>(for_backward<forward>));
  library.impl("cosine_attention_backward", static_cast<BackwardPass*>(backward_of<backward>));
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  const std::string inputs =
      "Tensor query, Tensor key_value, Tensor pooled_key_value, Tensor scale, Tensor query_embedding, "
      "Tensor window_bias, Tensor pooled_bias, Tensor pooled_bias_rows, Tensor pooled_bias_columns, Tensor tokens, "
      "Tensor token_bias";
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define("cosine_attention(" + inputs + ") -> Tensor");
  define("cosine_attention_forward(" + inputs + ") -> (Tensor, Tensor, Tensor)");
  define(
      "cosine_attention_backward(Tensor grad_output, Tensor output, Tensor logsumexp, Tensor rounding, " + inputs +
      ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) { register_kernels<forward_cpu, backward_cpu>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) { register_kernels<forward_meta, backward_meta>(library); }
#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) { register_kernels<forward_cuda, backward_cuda>(library); }
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("cosine_attention", static_cast<Whole*>(with_autograd));
  // A second derivative raises an error instead of being silently zero.
  library.impl("cosine_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_cosine_attention
}  // namespace
}  // namespace bioattn_mm
