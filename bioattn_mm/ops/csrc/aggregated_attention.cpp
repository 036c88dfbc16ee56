// Schema of the operator, and its registration with the dispatcher: CPU, CUDA, Meta, autograd and autocast.

#include "aggregated_attention.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

#define INPUTS                                                                                          \
  const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &pooled_key,                \
      const Tensor &pooled_value, const Tensor &window_bias, const Tensor &pooled_bias,                 \
      const Tensor &pooled_bias_rows, const Tensor &token_weights
#define INPUT_NAMES \
  query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights

Inputs contiguous(INPUTS) {
  return Inputs{query.contiguous(),        key.contiguous(),         value.contiguous(),
                pooled_key.contiguous(),   pooled_value.contiguous(), window_bias.contiguous(),
                pooled_bias.contiguous(),  pooled_bias_rows.contiguous(), token_weights.contiguous()};
}

bool is_half(const Tensor& tensor) { return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16; }

// On the CPU half precision is a format of storage: what is computed is float32.
Inputs in_float(const Inputs& i) {
  const auto to_float = [](const Tensor& tensor) { return tensor.to(at::kFloat); };
  return Inputs{to_float(i.query),        to_float(i.key),         to_float(i.value),
                to_float(i.pooled_key),   to_float(i.pooled_value), to_float(i.window_bias),
                to_float(i.pooled_bias),  i.pooled_bias_rows,       to_float(i.token_weights)};
}

Forward forward_cpu(INPUTS) {
  const Inputs inputs = contiguous(INPUT_NAMES);
  if (!is_half(query)) return aggregated_attention_forward_cpu(inputs);
  auto [output, logsumexp] = aggregated_attention_forward_cpu(in_float(inputs));
  return {output.to(query.scalar_type()), logsumexp};
}

Backward backward_cpu(const Tensor& grad_output, INPUTS, const Tensor& output, const Tensor& logsumexp) {
  const Inputs inputs = contiguous(INPUT_NAMES);
  if (!is_half(query)) return aggregated_attention_backward_cpu(grad_output.contiguous(), inputs, logsumexp);
  Backward gradients =
      aggregated_attention_backward_cpu(grad_output.to(at::kFloat).contiguous(), in_float(inputs), logsumexp);
  std::apply([&](auto&... tensors) { ((tensors = tensors.to(query.scalar_type())), ...); }, gradients);
  return gradients;
}

#ifdef BIOATTN_WITH_CUDA
Forward forward_cuda(INPUTS) { return aggregated_attention_forward_cuda(contiguous(INPUT_NAMES)); }

Backward backward_cuda(const Tensor& grad_output, INPUTS, const Tensor& output, const Tensor& logsumexp) {
  return aggregated_attention_backward_cuda(grad_output.contiguous(), contiguous(INPUT_NAMES), output, logsumexp);
}
#endif

// Shapes and dtypes alone, for tracing.
Tensor shaped_like(const Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); }

Forward forward_meta(INPUTS) {
  const auto sum_dtype = is_half(query) ? at::kFloat : query.scalar_type();
  return {shaped_like(query), at::empty_symint(query.sym_sizes().slice(0, 4), query.options().dtype(sum_dtype))};
}

Backward backward_meta(const Tensor& grad_output, INPUTS, const Tensor& output, const Tensor& logsumexp) {
  return {shaped_like(query),        shaped_like(key),         shaped_like(value),       shaped_like(pooled_key),
          shaped_like(pooled_value), shaped_like(window_bias), shaped_like(pooled_bias), shaped_like(token_weights)};
}

Forward call_forward(INPUTS) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::aggregated_attention_forward", "")
                       .typed<Forward(INPUTS)>();
  return op.call(INPUT_NAMES);
}

Backward call_backward(const Tensor& grad_output, INPUTS, const Tensor& output, const Tensor& logsumexp) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::aggregated_attention_backward", "")
                       .typed<Backward(const Tensor&, INPUTS, const Tensor&, const Tensor&)>();
  return op.call(grad_output, INPUT_NAMES, output, logsumexp);
}

// The weights are not saved: the backward pass computes them again from the inputs and the logsumexp. The output is
// of use there, and stays in memory for the layer that follows in any case.
struct AggregatedAttention : torch::autograd::Function<AggregatedAttention> {
  static Tensor forward(AutogradContext* context, INPUTS) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, logsumexp] = call_forward(INPUT_NAMES);
    context->save_for_backward({INPUT_NAMES, output, logsumexp});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const auto saved = context->get_saved_variables();
    auto [query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, token_weights] =
        call_backward(grad_outputs[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
                      saved[7], saved[8], saved[9], saved[10]);
    return {query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, Tensor(), token_weights};
  }
};

Tensor aggregated_attention_autograd(INPUTS) { return AggregatedAttention::apply(INPUT_NAMES); }

// Below autograd, where nothing asks for a gradient.
Tensor aggregated_attention(INPUTS) { return std::get<0>(call_forward(INPUT_NAMES)); }

// Under autocast everything is rounded to its dtype, as for other attention; sums are in float32 all the same.
template <c10::DeviceType device, c10::DispatchKey dispatch_key>
Tensor aggregated_attention_autocast(INPUTS) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(dispatch_key);
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, device); };
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::aggregated_attention", "")
                       .typed<Tensor(INPUTS)>();
  return op.call(cast(query), cast(key), cast(value), cast(pooled_key), cast(pooled_value), cast(window_bias),
                 cast(pooled_bias), pooled_bias_rows, cast(token_weights));
}

#define INPUT_SCHEMA                                                                                \
  "Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, " \
  "Tensor pooled_bias, Tensor pooled_bias_rows, Tensor token_weights"

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("aggregated_attention(" INPUT_SCHEMA ") -> Tensor");
  library.def("aggregated_attention_forward(" INPUT_SCHEMA ") -> (Tensor, Tensor)");
  library.def("aggregated_attention_backward(Tensor grad_output, " INPUT_SCHEMA
              ", Tensor output, Tensor logsumexp) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("aggregated_attention", aggregated_attention);
  library.impl("aggregated_attention_forward", forward_cpu);
  library.impl("aggregated_attention_backward", backward_cpu);
}

#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  library.impl("aggregated_attention", aggregated_attention);
  library.impl("aggregated_attention_forward", forward_cuda);
  library.impl("aggregated_attention_backward", backward_cuda);
}
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("aggregated_attention", aggregated_attention);
  library.impl("aggregated_attention_forward", forward_meta);
  library.impl("aggregated_attention_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("aggregated_attention", aggregated_attention_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("aggregated_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCPU, library) {
  library.impl("aggregated_attention", aggregated_attention_autocast<c10::kCPU, c10::DispatchKey::AutocastCPU>);
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCUDA, library) {
  library.impl("aggregated_attention", aggregated_attention_autocast<c10::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace bioattn_mm
