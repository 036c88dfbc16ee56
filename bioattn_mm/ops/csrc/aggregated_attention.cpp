// Schema of the operator, and its registration with the dispatcher: CPU, Meta and autograd.

#include "aggregated_attention.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

namespace bioattn_mm {

Sizes::Sizes(const Inputs& inputs)
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

Forward forward_cpu(INPUTS) { return aggregated_attention_forward_cpu(contiguous(INPUT_NAMES)); }

Backward backward_cpu(const Tensor& grad_output, INPUTS, const Tensor& logsumexp) {
  return aggregated_attention_backward_cpu(grad_output.contiguous(), contiguous(INPUT_NAMES), logsumexp);
}

// Shapes and dtypes alone, for tracing.
Tensor shaped_like(const Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); }

Forward forward_meta(INPUTS) {
  return {shaped_like(query),
          at::empty_symint(query.sym_sizes().slice(0, 4), query.options())};
}

Backward backward_meta(const Tensor& grad_output, INPUTS, const Tensor& logsumexp) {
  return {shaped_like(query),        shaped_like(key),         shaped_like(value),       shaped_like(pooled_key),
          shaped_like(pooled_value), shaped_like(window_bias), shaped_like(pooled_bias), shaped_like(token_weights)};
}

Forward call_forward(INPUTS) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::aggregated_attention_forward", "")
                       .typed<Forward(INPUTS)>();
  return op.call(INPUT_NAMES);
}

Backward call_backward(const Tensor& grad_output, INPUTS, const Tensor& logsumexp) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::aggregated_attention_backward", "")
                       .typed<Backward(const Tensor&, INPUTS, const Tensor&)>();
  return op.call(grad_output, INPUT_NAMES, logsumexp);
}

// The weights are not saved: the backward pass computes them again from the inputs and the logsumexp.
struct AggregatedAttention : torch::autograd::Function<AggregatedAttention> {
  static Tensor forward(AutogradContext* context, INPUTS) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, logsumexp] = call_forward(INPUT_NAMES);
    context->save_for_backward({INPUT_NAMES, logsumexp});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const auto saved = context->get_saved_variables();
    auto [query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, token_weights] =
        call_backward(grad_outputs[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
                      saved[7], saved[8], saved[9]);
    return {query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, Tensor(), token_weights};
  }
};

Tensor aggregated_attention_autograd(INPUTS) { return AggregatedAttention::apply(INPUT_NAMES); }

// Below autograd, where nothing asks for a gradient.
Tensor aggregated_attention(INPUTS) { return std::get<0>(call_forward(INPUT_NAMES)); }

#define INPUT_SCHEMA                                                                                \
  "Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, " \
  "Tensor pooled_bias, Tensor pooled_bias_rows, Tensor token_weights"

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("aggregated_attention(" INPUT_SCHEMA ") -> Tensor");
  library.def("aggregated_attention_forward(" INPUT_SCHEMA ") -> (Tensor, Tensor)");
  library.def("aggregated_attention_backward(Tensor grad_output, " INPUT_SCHEMA
              ", Tensor logsumexp) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("aggregated_attention", aggregated_attention);
  library.impl("aggregated_attention_forward", forward_cpu);
  library.impl("aggregated_attention_backward", backward_cpu);
}

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

}  // namespace
}  // namespace bioattn_mm
