// The operator aggregated_attention for PyTorch: schema, autograd, autocast, and kernels for CPU, CUDA and tracing.

#include "aggregated_attention.h"

#include "dispatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace bioattn_mm {
namespace {
namespace of_aggregated_attention {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The operators as PyTorch calls them, with each input as an argument of its own. The arguments are a pack of indices,
// so that their list is in `InputsOf` alone.
template <size_t>
using Argument = const Tensor&;

template <typename Indices>
struct SeparateArguments;

template <size_t... i>
struct SeparateArguments<std::index_sequence<i...>> {
  using Whole = Tensor(Argument<i>...);
  using ForwardPass = RoundedForward(Argument<i>...);
  using BackwardPass = Gradients(const Tensor&, Argument<i>..., const Tensor&, const Tensor&, const Tensor&);

  // Wraps a function of `Inputs`.
  template <auto function>
  static auto call(Argument<i>... inputs) {
    return function(Inputs{inputs...});
  }

  template <auto function>
  static Gradients backward(
      const Tensor& grad_output, Argument<i>... inputs, const Tensor& output, const Tensor& logsumexp,
      const Tensor& rounding) {
    return to_gradients(function(grad_output, Inputs{inputs...}, output, logsumexp, rounding));
  }
};
using Separate = SeparateArguments<std::make_index_sequence<9>>;

RoundedForward forward_meta(const Inputs& inputs, bool) {
  const Tensor& query = inputs.query;
  const auto dtype = at::isReducedFloatingType(query.scalar_type()) ? at::kFloat : query.scalar_type();
  const Tensor logsumexp = at::empty_symint(query.sym_sizes().slice(0, 4), query.options().dtype(dtype));
  return {shaped_like(query), logsumexp, empty_rounding(query)};
}

// On the CPU half precision is a format of storage: what is computed is float32.
Tensor at_least_float(const Tensor& tensor) {
  return (at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor).contiguous();
}

CpuInputs inputs_of_cpu(const Inputs& inputs) {
  const Inputs dense = inputs.map([](const Tensor& input) { return input.contiguous(); });
  const int64_t width = inputs.pooled_bias.size(2), pooled_width = inputs.pooled_bias.size(3);
  CpuInputs cpu;
  cpu.query = dense.query, cpu.key = dense.key, cpu.value = dense.value;
  cpu.pooled_key = dense.pooled_key, cpu.pooled_value = dense.pooled_value;
  cpu.window_bias = at_least_float(inputs.window_bias);
  cpu.pooled_bias = at_least_float(inputs.pooled_bias).flatten(2);
  cpu.pooled_bias_rows = dense.pooled_bias_rows;
  cpu.pooled_bias_columns = at::arange(width * pooled_width, dense.pooled_bias_rows.options()).view({width, pooled_width});
  cpu.token_weights = dense.token_weights;
  return cpu;
}

RoundedForward forward_cpu(const Inputs& inputs, bool for_backward) {
  if (inputs.query.numel() == 0) return forward_meta(inputs, for_backward);  // nothing to compute
  auto [output, logsumexp] = attention_forward_cpu(inputs_of_cpu(inputs));
  // The backward pass of the CPU does not read the rounding, but all devices have the same shapes.
  return {output, logsumexp.permute({0, 2, 3, 1}).contiguous(), empty_rounding(inputs.query)};
}

Inputs backward_cpu(
    const Tensor& grad_output, const Inputs& inputs, const Tensor&, const Tensor& logsumexp, const Tensor&) {
  if (inputs.query.numel() == 0) return inputs.map([](const Tensor& input) { return at::zeros_like(input); });
  const CpuInputs cpu = inputs_of_cpu(inputs);
  CpuInputs gradients;
  gradients.query = at::empty_like(cpu.query), gradients.key = at::empty_like(cpu.key);
  gradients.value = at::empty_like(cpu.value), gradients.pooled_key = at::empty_like(cpu.pooled_key);
  gradients.pooled_value = at::empty_like(cpu.pooled_value), gradients.pooled_bias = at::empty_like(cpu.pooled_bias);
  gradients.token_weights = at::empty_like(cpu.token_weights);
  attention_backward_cpu(
      grad_output.contiguous(), cpu, logsumexp.permute({0, 3, 1, 2}).contiguous(), gradients);
  const auto dtype = inputs.query.scalar_type();
  return {
      gradients.query,
      gradients.key,
      gradients.value,
      gradients.pooled_key,
      gradients.pooled_value,
      gradients.window_bias.to(dtype),
      gradients.pooled_bias.view(inputs.pooled_bias.sizes()).to(dtype),
      Tensor(),
      gradients.token_weights};
}

Inputs backward_meta(const Tensor&, const Inputs& inputs, const Tensor&, const Tensor&, const Tensor&) {
  return inputs.map(shaped_like);
}

Tensor call(const Inputs& inputs) {
  static const auto op = find_operator<Separate::Whole>("bioattn_mm::aggregated_attention");
  return inputs.apply([](const auto&... tensors) { return op.call(tensors...); });
}

RoundedForward call_forward(const Inputs& inputs) {
  static const auto op = find_operator<Separate::ForwardPass>("bioattn_mm::aggregated_attention_forward");
  return inputs.apply([](const auto&... tensors) { return op.call(tensors...); });
}

Gradients call_backward(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding) {
  static const auto op = find_operator<Separate::BackwardPass>("bioattn_mm::aggregated_attention_backward");
  return inputs.apply([&](const auto&... tensors) {
    return op.call(grad_output, tensors..., output, logsumexp, rounding);
  });
}

// The attention weights are not saved: the backward pass computes them again from the inputs and the logsumexp. It
// needs the output, too, which stays in memory anyway for the layer that follows.
struct AggregatedAttention : torch::autograd::Function<AggregatedAttention> {
  template <typename... Tensors>
  static Tensor forward(AutogradContext* context, const Tensors&... inputs) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, logsumexp, rounding] = call_forward(Inputs{inputs...});
    context->save_for_backward({inputs..., output, logsumexp, rounding});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const auto saved = context->get_saved_variables();
    variable_list gradients = std::apply(
        [](const auto&... tensors) { return variable_list{tensors...}; },
        call_backward(grad_outputs[0], inputs_from(saved), saved[9], saved[10], saved[11]));
    gradients.insert(gradients.end() - 1, Tensor());  // of pooled_bias_rows, the last input but one
    return gradients;
  }
};

Tensor with_autograd(const Inputs& inputs) {
  if (!at::GradMode::is_enabled()) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call(inputs);
  }
  return inputs.apply([](const auto&... tensors) { return AggregatedAttention::apply(tensors...); });
}

template <auto forward>
Tensor without_autograd(const Inputs& inputs) {
  return std::get<0>(forward(inputs, /*for_backward=*/false));
}

template <auto forward>
RoundedForward for_backward(const Inputs& inputs) {
  return forward(inputs, /*for_backward=*/true);
}

template <c10::DeviceType device>
Tensor with_autocast(const Inputs& inputs) {
  const Autocast<device> cast;
  return call(inputs.map(cast));
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  const std::string inputs =
      "Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, "
      "Tensor pooled_bias, Tensor pooled_bias_rows, Tensor token_weights";
  const std::string gradients = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define("aggregated_attention(" + inputs + ") -> Tensor");
  define("aggregated_attention_forward(" + inputs + ") -> (Tensor, Tensor, Tensor)");
  define(
      "aggregated_attention_backward(Tensor grad_output, " + inputs +
      ", Tensor output, Tensor logsumexp, Tensor rounding) -> " + gradients);
}

template <auto forward, auto backward>
void register_kernels(torch::Library& library) {
  library.impl("aggregated_attention", Separate::call<without_autograd<forward>>);
  library.impl("aggregated_attention_forward", Separate::call<for_backward<forward>>);
  library.impl("aggregated_attention_backward", Separate::backward<backward>);
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) { register_kernels<forward_cpu, backward_cpu>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) { register_kernels<forward_meta, backward_meta>(library); }
#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  register_kernels<aggregated_attention_forward_cuda, aggregated_attention_backward_cuda>(library);
}
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("aggregated_attention", Separate::call<with_autograd>);
  // A second derivative raises an error instead of being silently zero.
  library.impl("aggregated_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCPU, library) {
  library.impl("aggregated_attention", Separate::call<with_autocast<c10::kCPU>>);
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCUDA, library) {
  library.impl("aggregated_attention", Separate::call<with_autocast<c10::kCUDA>>);
}

}  // namespace of_aggregated_attention
}  // namespace
}  // namespace bioattn_mm
