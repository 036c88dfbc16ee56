// The operator gelu_pool for PyTorch: schema, autograd, and kernels for CPU and tracing.

#include "gelu_pool.h"

#include "dispatch.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {
namespace of_gelu_pool {

using at::Tensor;
using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor forward_cpu(const Tensor& x, int64_t height, int64_t width) {
  return gelu_pool_forward_cpu(x.contiguous(), height, width);
}

Tensor backward_cpu(const Tensor& grad_output, const Tensor& x) {
  return gelu_pool_backward_cpu(grad_output.contiguous(), x.contiguous());
}

Tensor forward_meta(const Tensor& x, SymInt height, SymInt width) {
  return at::empty_symint({x.sym_size(0), height, width, x.sym_size(3)}, x.options());
}

Tensor backward_meta(const Tensor&, const Tensor& x) { return shaped_like(x); }

struct GeluPool : torch::autograd::Function<GeluPool> {
  static Tensor forward(AutogradContext* context, const Tensor& x, SymInt height, SymInt width) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x});
    static const auto op = find_operator<decltype(forward_meta)>("bioattn_mm::gelu_pool");
    return op.call(x, height, width);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(backward_meta)>("bioattn_mm::gelu_pool_backward");
    return {op.call(grad_outputs[0], context->get_saved_variables()[0]), Tensor(), Tensor()};
  }
};

Tensor with_autograd(const Tensor& x, SymInt height, SymInt width) { return GeluPool::apply(x, height, width); }

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("gelu_pool(Tensor x, SymInt height, SymInt width) -> Tensor");
  library.def("gelu_pool_backward(Tensor grad_output, Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("gelu_pool", forward_cpu);
  library.impl("gelu_pool_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("gelu_pool", forward_meta);
  library.impl("gelu_pool_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("gelu_pool", with_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("gelu_pool_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_gelu_pool
}  // namespace
}  // namespace bioattn_mm
