// The operator relative_bias_attention for PyTorch: schema, autograd, autocast, and kernels for CPU and tracing.

#include "relative_bias_attention.h"

#include "aggregated_attention.h"
#include "cpu/kernels.h"
#include "dispatch.h"

#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {
namespace of_relative_bias_attention {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Forward = std::tuple<Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// On the CPU half precision is a format of storage: what is computed is float32. The bias is never in half precision.
Tensor at_least_float(const Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

// An uninitialised contiguous tensor with the shape and dtype of another, which may have other strides.
Tensor contiguous_like(const Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); }

// With instructions of bfloat16, attention to all tokens is aggregated attention with all tokens pooled and no window.
bool is_aggregated(const Tensor& query) { return query.scalar_type() == at::kBFloat16 && has_bfloat16(); }

CpuInputs without_window(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  const auto tokens = [](const Tensor& tensor) {
    return tensor.stride(4) == 1 && tensor.stride(3) == tensor.size(4) ? tensor : tensor.contiguous();
  };
  // Where the table has the offset between two rows, or two columns.
  const auto offsets = [](int64_t length) {
    const Tensor place = at::arange(length);
    return place.unsqueeze(1) - place + (length - 1);
  };
  CpuInputs inputs;
  inputs.query = tokens(scale == 1 ? query : query * scale);
  inputs.pooled_key = tokens(key), inputs.pooled_value = tokens(value);
  inputs.window_bias = at::empty({query.size(3), 0}, bias.options());
  inputs.pooled_bias = bias.contiguous();
  inputs.pooled_bias_rows = offsets(query.size(1)), inputs.pooled_bias_columns = offsets(query.size(2));
  return inputs;
}

Forward forward_cpu(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  if (is_aggregated(query)) {
    const auto [output, logsumexp] = attention_forward_cpu(without_window(query, key, value, bias, scale));
    return {output, logsumexp.permute({0, 2, 3, 1}).contiguous()};
  }
  auto [output, logsumexp] = relative_bias_attention_forward_cpu(
      at_least_float(query), at_least_float(key), at_least_float(value), bias, scale);
  return {output.to(query.scalar_type()), logsumexp};
}

Gradients backward_cpu(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& output, const Tensor& logsumexp, double scale) {
  if (is_aggregated(query)) {
    CpuInputs grad;
    grad.query = contiguous_like(query);
    grad.pooled_key = contiguous_like(key), grad.pooled_value = contiguous_like(value);
    grad.pooled_bias = contiguous_like(bias);
    attention_backward_cpu(
        grad_output.contiguous(), without_window(query, key, value, bias, scale),
        logsumexp.permute({0, 3, 1, 2}).contiguous(), grad);
    return {scale == 1 ? grad.query : grad.query * scale, grad.pooled_key, grad.pooled_value, grad.pooled_bias};
  }
  auto [grad_query, grad_key, grad_value, grad_bias] = relative_bias_attention_backward_cpu(
      at_least_float(grad_output), at_least_float(query), at_least_float(key), at_least_float(value), bias,
      at_least_float(output), logsumexp, scale);
  const auto dtype = query.scalar_type();
  return {grad_query.to(dtype), grad_key.to(dtype), grad_value.to(dtype), grad_bias};
}

Forward forward_meta(const Tensor& query, const Tensor&, const Tensor&, const Tensor& bias, double) {
  return {contiguous_like(query), at::empty_symint(query.sym_sizes().slice(0, 4), bias.options())};
}

Gradients backward_meta(
    const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, const Tensor&,
    const Tensor&, double) {
  return {contiguous_like(query), contiguous_like(key), contiguous_like(value), contiguous_like(bias)};
}

Tensor call(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  static const auto op = find_operator<decltype(call)>("bioattn_mm::relative_bias_attention");
  return op.call(query, key, value, bias, scale);
}

Forward call_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  static const auto op = find_operator<decltype(call_forward)>("bioattn_mm::relative_bias_attention_forward");
  return op.call(query, key, value, bias, scale);
}

// The attention weights are not saved: the backward pass computes them again from the inputs and the logsumexp. It
// needs the output, too, which stays in memory anyway for the layer that follows.
struct RelativeBiasAttention : torch::autograd::Function<RelativeBiasAttention> {
  static Tensor forward(
      AutogradContext* context, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
      double scale) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, logsumexp] = call_forward(query, key, value, bias, scale);
    context->save_for_backward({query, key, value, bias, output, logsumexp});
    context->saved_data["scale"] = scale;
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(backward_cpu)>("bioattn_mm::relative_bias_attention_backward");
    const auto s = context->get_saved_variables();
    auto [query, key, value, bias] =
        op.call(grad_outputs[0], s[0], s[1], s[2], s[3], s[4], s[5], context->saved_data["scale"].toDouble());
    return {query, key, value, bias, Tensor()};
  }
};

Tensor with_autograd(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  return RelativeBiasAttention::apply(query, key, value, bias, scale);
}

Tensor without_autograd(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  return std::get<0>(call_forward(query, key, value, bias, scale));
}

// The bias keeps its precision.
Tensor with_autocast(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  const Autocast<c10::kCPU> cast;
  return call(cast(query), cast(key), cast(value), bias, scale);
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def(
      "relative_bias_attention(Tensor query, Tensor key, Tensor value, Tensor bias, float scale) -> Tensor");
  library.def(
      "relative_bias_attention_forward(Tensor query, Tensor key, Tensor value, Tensor bias, float scale) -> "
      "(Tensor, Tensor)");
  library.def(
      "relative_bias_attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor bias, "
      "Tensor output, Tensor logsumexp, float scale) -> (Tensor, Tensor, Tensor, Tensor)");
}

template <auto forward, auto backward>
void register_kernels(torch::Library& library) {
  library.impl("relative_bias_attention", without_autograd);
  library.impl("relative_bias_attention_forward", forward);
  library.impl("relative_bias_attention_backward", backward);
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) { register_kernels<forward_cpu, backward_cpu>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) { register_kernels<forward_meta, backward_meta>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCPU, library) { library.impl("relative_bias_attention", with_autocast); }

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("relative_bias_attention", with_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("relative_bias_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_relative_bias_attention
}  // namespace
}  // namespace bioattn_mm
