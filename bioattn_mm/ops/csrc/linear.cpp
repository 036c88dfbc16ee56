// The operator linear for PyTorch: schema, autograd, and kernels for CPU and tracing. Products are PyTorch's but for the
// gradient of the weight.

#include "linear.h"

#include "dispatch.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <string_view>

namespace bioattn_mm {
namespace {
namespace of_linear {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Tensor as_matrix(const Tensor& tokens) { return tokens.reshape_symint({-1, tokens.sym_size(-1)}); }

// oneDNN's product, which adds the bias itself: `addmm` copies it to all tokens first. PyTorch may be built without it.
using Pointwise = Tensor(
    const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
    c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

std::optional<c10::TypedOperatorHandle<Pointwise>> find_pointwise() {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!op) return std::nullopt;
  return op->typed<Pointwise>();
}

// tokens weight^T + bias, of matrices.
Tensor multiply(const Tensor& tokens, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (!bias) return at::mm(tokens, weight.t());
  static const auto pointwise = find_pointwise();
  const bool takes = pointwise && tokens.device().is_cpu() && tokens.scalar_type() == at::kBFloat16;
  // oneDNN refuses bfloat16 on processors that have no instructions for it.
  if (!takes || !linear_gradients_can_run_cpu()) return at::addmm(*bias, tokens, weight.t());
  const c10::List<std::optional<at::Scalar>> no_scalars;
  return pointwise->call(tokens, weight, bias, "none", no_scalars, std::nullopt);
}

// The output, and the weight in the dtype of x, which the backward pass takes.
Two forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const bool converts = x.device().is_cpu() && x.scalar_type() == at::kBFloat16 && linear_gradients_can_run_cpu();
  const Tensor converted = converts ? to_bfloat16_cpu(weight) : weight.to(x.scalar_type());
  const Tensor output = multiply(as_matrix(x), converted, bias ? std::optional(bias->to(x.scalar_type())) : bias);
  c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = weight.size(0);
  return {output.view(sizes), converted};
}

Two forward_meta(const Tensor& x, const Tensor& weight, const std::optional<Tensor>&) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.back() = weight.sym_size(0);
  return {at::empty_symint(sizes, x.options()), at::empty_symint(weight.sym_sizes(), x.options())};
}

template <auto forward>
Tensor without_autograd(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return std::get<0>(forward(x, weight, bias));
}

// `weight` is in the dtype of x, the gradients of weight and bias are in float32.
Three backward_cpu(const Tensor& grad_output, const Tensor& x, const Tensor& weight) {
  const Tensor tokens = as_matrix(x).contiguous(), gradients = as_matrix(grad_output).contiguous();
  const Tensor grad_x = at::mm(gradients, weight).view(x.sizes());
  if (linear_gradients_can_run_cpu()) {
    const auto [grad_weight, grad_bias] = linear_gradients_cpu(gradients, tokens);
    return {grad_x, grad_weight, grad_bias};
  }
  return {grad_x, at::mm(gradients.t(), tokens).to(at::kFloat), at::sum(gradients, 0, false, at::kFloat)};
}

Three backward_meta(const Tensor& grad_output, const Tensor& x, const Tensor& weight) {
  const auto options = weight.options().dtype(at::kFloat);
  return {shaped_like(x), at::empty_symint(weight.sym_sizes(), options),
          at::empty_symint({weight.sym_size(0)}, options)};
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(
      AutogradContext* context, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = find_operator<decltype(forward_meta)>("bioattn_mm::linear_forward");
    const auto [output, converted] = op.call(x, weight, bias);
    context->save_for_backward({x, converted});
    context->saved_data["has_bias"] = bias.has_value();
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(backward_meta)>("bioattn_mm::linear_backward");
    const auto saved = context->get_saved_variables();
    const auto [x, weight, bias] = op.call(grad_outputs[0], saved[0], saved[1]);
    return {x, weight, context->saved_data["has_bias"].toBool() ? bias : Tensor()};
  }
};

Tensor with_autograd(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return Linear::apply(x, weight, bias);
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  library.def("linear_forward(Tensor x, Tensor weight, Tensor? bias) -> (Tensor, Tensor)");
  library.def("linear_backward(Tensor grad_output, Tensor x, Tensor weight) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("linear", without_autograd<of_linear::forward>);
  library.impl("linear_forward", of_linear::forward);
  library.impl("linear_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("linear", without_autograd<forward_meta>);
  library.impl("linear_forward", forward_meta);
  library.impl("linear_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("linear", with_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("linear_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_linear
}  // namespace
}  // namespace bioattn_mm
