// The operator gated_convolution for PyTorch: schema, autograd, and kernels for each device and for tracing.

#include "gated_convolution.h"

#include "dispatch.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {
namespace of_gated_convolution {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kLanes = 16;

void check(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK_VALUE(
      weight.size(0) % kLanes == 0 && x.scalar_type() != at::kHalf, "gated_convolution on the CPU takes a multiple of ",
      kLanes, " channels and no float16");
}

Tensor or_zeros(const optional<Tensor>& x_bias, const Tensor& bias) {
  return x_bias ? x_bias->contiguous() : at::zeros({2 * bias.size(0)}, bias.options());
}

Tensor forward_cpu(const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  check(x, weight);
  return gated_convolution_forward_cpu(
      x.contiguous(), or_zeros(x_bias, bias), weight.contiguous(), bias.contiguous());
}

GatedConvolutionGradients backward_cpu(
    const Tensor& grad_output, const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias) {
  check(x, weight);
  return gated_convolution_backward_cpu(
      grad_output.contiguous(), x.contiguous(), or_zeros(x_bias, bias), weight.contiguous(), bias.contiguous());
}

Tensor forward_meta(const Tensor& x, const optional<Tensor>&, const Tensor& weight, const Tensor&) {
  return at::empty_symint({x.sym_size(0), x.sym_size(1), x.sym_size(2), weight.sym_size(0)}, x.options());
}

GatedConvolutionGradients backward_meta(
    const Tensor&, const Tensor& x, const optional<Tensor>&, const Tensor& weight, const Tensor& bias) {
  return {shaped_like(x), at::empty_symint({x.sym_size(3)}, bias.options()), shaped_like(weight), shaped_like(bias)};
}

// Only the inputs are saved: the backward pass computes the convolution again, which costs less than to read it.
struct GatedConvolution : torch::autograd::Function<GatedConvolution> {
  static Tensor forward(
      AutogradContext* context, const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight,
      const Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, x_bias.value_or(Tensor()), weight, bias});
    static const auto op = find_operator<decltype(forward_meta)>("bioattn_mm::gated_convolution");
    return op.call(x, x_bias, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(backward_meta)>("bioattn_mm::gated_convolution_backward");
    const auto saved = context->get_saved_variables();
    const auto given = saved[1].defined() ? optional<Tensor>(saved[1]) : std::nullopt;
    auto [x, x_bias, weight, bias] = op.call(grad_outputs[0], saved[0], given, saved[2], saved[3]);
    return {x, given ? x_bias : Tensor(), weight, bias};
  }
};

Tensor with_autograd(const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  return GatedConvolution::apply(x, x_bias, weight, bias);
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("gated_convolution(Tensor x, Tensor? x_bias, Tensor weight, Tensor bias) -> Tensor");
  library.def(
      "gated_convolution_backward(Tensor grad_output, Tensor x, Tensor? x_bias, Tensor weight, Tensor bias) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("gated_convolution", forward_cpu);
  library.impl("gated_convolution_backward", backward_cpu);
}
#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  library.impl("gated_convolution", gated_convolution_forward_cuda);
  library.impl("gated_convolution_backward", gated_convolution_backward_cuda);
}
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("gated_convolution", forward_meta);
  library.impl("gated_convolution_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("gated_convolution", with_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("gated_convolution_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_gated_convolution
}  // namespace
}  // namespace bioattn_mm
