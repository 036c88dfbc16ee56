// The operator log_cpb_table for PyTorch: schema, autograd, and kernels for each device and for tracing.

#include "log_cpb.h"

#include "dispatch.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {
namespace of_log_cpb {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Tensor forward_meta(const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor&) {
  return at::empty_symint(
      {weight.sym_size(0), vertical.sym_size(0), horizontal.sym_size(0)}, vertical.options());
}

Gradients backward_meta(
    const Tensor&, const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  return {shaped_like(vertical), shaped_like(horizontal), shaped_like(weight)};
}

// The hidden activations (R, C, hidden) are not saved: the backward pass computes them again.
struct LogCPBTable : torch::autograd::Function<LogCPBTable> {
  static Tensor forward(
      AutogradContext* context, const Tensor& vertical, const Tensor& horizontal, const Tensor& weight,
      const Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({vertical, horizontal, weight});
    static const auto op = find_operator<decltype(forward_meta)>("bioattn_mm::log_cpb_table");
    return op.call(vertical, horizontal, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(backward_meta)>("bioattn_mm::log_cpb_table_backward");
    const auto saved = context->get_saved_variables();
    auto [vertical, horizontal, weight] = op.call(grad_outputs[0], saved[0], saved[1], saved[2]);
    return {vertical, horizontal, weight, grad_outputs[0].sum({1, 2})};
  }
};

Tensor log_cpb_table_autograd(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor& bias) {
  return LogCPBTable::apply(vertical, horizontal, weight, bias);
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("log_cpb_table(Tensor vertical, Tensor horizontal, Tensor weight, Tensor bias) -> Tensor");
  library.def(
      "log_cpb_table_backward(Tensor grad_table, Tensor vertical, Tensor horizontal, Tensor weight) -> "
      "(Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("log_cpb_table", log_cpb_table_forward_cpu);
  library.impl("log_cpb_table_backward", log_cpb_table_backward_cpu);
}
#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  library.impl("log_cpb_table", log_cpb_table_forward_cuda);
  library.impl("log_cpb_table_backward", log_cpb_table_backward_cuda);
}
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("log_cpb_table", forward_meta);
  library.impl("log_cpb_table_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("log_cpb_table", log_cpb_table_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("log_cpb_table_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace of_log_cpb
}  // namespace
}  // namespace bioattn_mm
