// The operator peripheral_attention for PyTorch: schema, autograd, autocast, and kernels for CPU and tracing.

#include "peripheral_attention.h"

#include "dispatch.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace bioattn_mm {
namespace {
namespace of_peripheral_attention {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Gradients =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Gradients to_gradients(const PeripheralInputs& gradients) {
  return gradients.apply([](const auto&... tensors) { return Gradients{tensors...}; });
}

// The operators as PyTorch calls them, with each input as an argument of its own. The arguments are a pack of indices,
// so that their list is in `PeripheralInputs` alone.
template <size_t>
using Argument = const Tensor&;

template <typename Indices>
struct SeparateArguments;

template <size_t... i>
struct SeparateArguments<std::index_sequence<i...>> {
  using Whole = Tensor(Argument<i>..., double);
  using ForwardPass = PeripheralForward(Argument<i>..., double);
  using BackwardPass = Gradients(const Tensor&, Argument<i>..., double, const Tensor&);

  // Wraps a function of `PeripheralInputs`.
  template <auto function>
  static auto call(Argument<i>... inputs, double eps) {
    return function(PeripheralInputs{inputs...}, eps);
  }

  template <auto function>
  static Gradients backward(const Tensor& grad_output, Argument<i>... inputs, double eps, const Tensor& logsumexp) {
    return to_gradients(function(grad_output, PeripheralInputs{inputs...}, eps, logsumexp));
  }

  static PeripheralInputs from(const variable_list& tensors) { return {tensors[i]...}; }
};
using Separate = SeparateArguments<std::make_index_sequence<PeripheralInputs::kNumber>>;

// On the CPU half precision is a format of storage: what is computed is float32.
Tensor at_least_float(const Tensor& tensor) {
  return (at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor).contiguous();
}

PeripheralForward forward_cpu(const PeripheralInputs& inputs, double eps) {
  auto [output, logsumexp] = peripheral_attention_forward_cpu(inputs.map(at_least_float), eps);
  return {output.to(inputs.query.scalar_type()), logsumexp};
}

PeripheralInputs backward_cpu(
    const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp) {
  PeripheralInputs gradients =
      peripheral_attention_backward_cpu(at_least_float(grad_output), inputs.map(at_least_float), eps, logsumexp);
  for (Tensor* gradient : {&gradients.query, &gradients.key, &gradients.value})
    *gradient = gradient->to(inputs.query.scalar_type());
  return gradients;
}

PeripheralForward forward_meta(const PeripheralInputs& inputs, double) {
  const Tensor& query = inputs.query;
  return {
      at::empty_symint(query.sym_sizes(), query.options()),
      at::empty_symint(query.sym_sizes().slice(0, 3), inputs.plane.options())};
}

PeripheralInputs backward_meta(const Tensor&, const PeripheralInputs& inputs, double, const Tensor&) {
  return inputs.map([](const Tensor& input) { return at::empty_symint(input.sym_sizes(), input.options()); });
}

Tensor call(const PeripheralInputs& inputs, double eps) {
  static const auto op = find_operator<Separate::Whole>("bioattn_mm::peripheral_attention");
  return inputs.apply([&](const auto&... tensors) { return op.call(tensors..., eps); });
}

PeripheralForward call_forward(const PeripheralInputs& inputs, double eps) {
  static const auto op = find_operator<Separate::ForwardPass>("bioattn_mm::peripheral_attention_forward");
  return inputs.apply([&](const auto&... tensors) { return op.call(tensors..., eps); });
}

Gradients call_backward(
    const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp) {
  static const auto op = find_operator<Separate::BackwardPass>("bioattn_mm::peripheral_attention_backward");
  return inputs.apply([&](const auto&... tensors) { return op.call(grad_output, tensors..., eps, logsumexp); });
}

// Of all pairs of tokens nothing is saved: the backward pass computes log Phi_p and the weights again.
struct PeripheralAttention : torch::autograd::Function<PeripheralAttention> {
  template <typename... Tensors>
  static Tensor forward(AutogradContext* context, double eps, const Tensors&... inputs) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, logsumexp] = call_forward(PeripheralInputs{inputs...}, eps);
    context->saved_data["eps"] = eps;
    context->save_for_backward({inputs..., logsumexp});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const auto saved = context->get_saved_variables();
    const auto gradients = call_backward(
        grad_outputs[0], Separate::from(saved), context->saved_data["eps"].toDouble(),
        saved[PeripheralInputs::kNumber]);
    return std::apply([](const auto&... tensors) { return variable_list{Tensor(), tensors...}; }, gradients);
  }
};

Tensor with_autograd(const PeripheralInputs& inputs, double eps) {
  return inputs.apply([&](const auto&... tensors) { return PeripheralAttention::apply(eps, tensors...); });
}

Tensor without_autograd(const PeripheralInputs& inputs, double eps) { return std::get<0>(call_forward(inputs, eps)); }

// Position-based attention keeps its dtype.
template <c10::DeviceType device>
Tensor with_autocast(const PeripheralInputs& inputs, double eps) {
  const Autocast<device> cast;
  PeripheralInputs rounded = inputs;
  for (Tensor* tensor : {&rounded.query, &rounded.key, &rounded.value}) *tensor = cast(*tensor);
  return call(rounded, eps);
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  const std::string inputs =
      "Tensor query, Tensor key, Tensor value, Tensor plane, Tensor scale, Tensor shift, Tensor conv_weight, "
      "Tensor conv_bias, Tensor norm_weight, Tensor norm_bias, float eps";
  const std::string gradients =
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define("peripheral_attention(" + inputs + ") -> Tensor");
  define("peripheral_attention_forward(" + inputs + ") -> (Tensor, Tensor)");
  define("peripheral_attention_backward(Tensor grad_output, " + inputs + ", Tensor logsumexp) -> " + gradients);
}

template <auto forward, auto backward>
void register_kernels(torch::Library& library) {
  library.impl("peripheral_attention", Separate::call<without_autograd>);
  library.impl("peripheral_attention_forward", Separate::call<forward>);
  library.impl("peripheral_attention_backward", Separate::backward<backward>);
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) { register_kernels<forward_cpu, backward_cpu>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) { register_kernels<forward_meta, backward_meta>(library); }

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("peripheral_attention", Separate::call<with_autograd>);
  // A second derivative raises an error instead of being silently zero.
  library.impl("peripheral_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCPU, library) {
  library.impl("peripheral_attention", Separate::call<with_autocast<c10::kCPU>>);
}

}  // namespace of_peripheral_attention
}  // namespace
}  // namespace bioattn_mm
