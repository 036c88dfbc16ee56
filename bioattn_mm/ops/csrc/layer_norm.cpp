// The operator layer_norm for PyTorch: schema, autograd, and kernels for CPU and tracing. What the kernels do not take
// runs in PyTorch's own.

#include "layer_norm.h"

#include "dispatch.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {
namespace of_layer_norm {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Three forward_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (layer_norm_can_run_cpu(x))
    return layer_norm_forward_cpu(x.contiguous(), weight.contiguous(), bias.contiguous(), eps);
  return at::native_layer_norm(x, weight.sizes(), weight, bias, eps);
}

Three backward_cpu(
    const Tensor& grad_output, const Tensor& x, const Tensor& mean, const Tensor& inverse_deviation,
    const Tensor& weight, const Tensor& bias) {
  if (layer_norm_can_run_cpu(x))
    return layer_norm_backward_cpu(
        grad_output.contiguous(), x.contiguous(), mean.contiguous(), inverse_deviation.contiguous(),
        weight.contiguous());
  return at::native_layer_norm_backward(
      grad_output, x, weight.sizes(), mean, inverse_deviation, weight, bias, {true, true, true});
}

Three forward_meta(const Tensor& x, const Tensor& weight, const Tensor&, double) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.back() = 1;
  const auto statistic = [&] { return at::empty_symint(sizes, weight.options()); };
  return {shaped_like(x), statistic(), statistic()};
}

Three backward_meta(
    const Tensor&, const Tensor& x, const Tensor&, const Tensor&, const Tensor& weight, const Tensor& bias) {
  return {shaped_like(x), shaped_like(weight), shaped_like(bias)};
}

Three call_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  static const auto op = find_operator<decltype(forward_meta)>("bioattn_mm::layer_norm_forward");
  return op.call(x, weight, bias, eps);
}

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static Tensor forward(
      AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, mean, inverse_deviation] = call_forward(x, weight, bias, eps);
    context->save_for_backward({x, mean, inverse_deviation, weight, bias});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(backward_meta)>("bioattn_mm::layer_norm_backward");
    const auto saved = context->get_saved_variables();
    auto [x, weight, bias] = op.call(grad_outputs[0], saved[0], saved[1], saved[2], saved[3], saved[4]);
    return {x, weight, bias, Tensor()};
  }
};

Tensor with_autograd(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return LayerNorm::apply(x, weight, bias, eps);
}

Tensor without_autograd(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return std::get<0>(call_forward(x, weight, bias, eps));
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor");
  library.def("layer_norm_forward(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)");
  library.def(
      "layer_norm_backward(Tensor grad_output, Tensor x, Tensor mean, Tensor inverse_deviation, Tensor weight, "
      "Tensor bias) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("layer_norm", without_autograd);
  library.impl("layer_norm_forward", forward_cpu);
  library.impl("layer_norm_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("layer_norm", without_autograd);
  library.impl("layer_norm_forward", forward_meta);
  library.impl("layer_norm_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("layer_norm", with_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("layer_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_layer_norm
}  // namespace
}  // namespace bioattn_mm
