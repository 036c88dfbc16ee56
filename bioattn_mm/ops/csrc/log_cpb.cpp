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

Tensor forward_meta(
    const Tensor& vertical, const Tensor& horizontal, const Tensor&, const Tensor&, const Tensor& weight, const Tensor&) {
  return at::empty_symint({weight.sym_size(0), vertical.sym_size(0), horizontal.sym_size(0)}, vertical.options());
}

LogCPBGradients backward_meta(
    const Tensor&, const Tensor&, const Tensor&, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight) {
  return {
      shaped_like(hidden_weight), shaped_like(hidden_bias), shaped_like(weight),
      at::empty_symint({weight.sym_size(0)}, weight.options())};
}

// The hidden activations (R, C, hidden) are not saved: the backward pass computes them again. The coordinates are
// constants of a size and have no gradient.
struct LogCPBTable : torch::autograd::Function<LogCPBTable> {
  static Tensor forward(
      AutogradContext* context, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
      const Tensor& hidden_bias, const Tensor& weight, const Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({vertical, horizontal, hidden_weight, hidden_bias, weight});
    static const auto op = find_operator<LogCPBForward>("bioattn_mm::log_cpb_table");
    return op.call(vertical, horizontal, hidden_weight, hidden_bias, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<LogCPBBackward>("bioattn_mm::log_cpb_table_backward");
    const auto saved = context->get_saved_variables();
    auto [hidden_weight, hidden_bias, weight, bias] =
        op.call(grad_outputs[0], saved[0], saved[1], saved[2], saved[3], saved[4]);
    return {Tensor(), Tensor(), hidden_weight, hidden_bias, weight, bias};
  }
};

Tensor log_cpb_table_autograd(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  return LogCPBTable::apply(vertical, horizontal, hidden_weight, hidden_bias, weight, bias);
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def(
      "log_cpb_table(Tensor vertical, Tensor horizontal, Tensor hidden_weight, Tensor hidden_bias, Tensor weight, "
      "Tensor bias) -> Tensor");
  library.def(
      "log_cpb_table_backward(Tensor grad_table, Tensor vertical, Tensor horizontal, Tensor hidden_weight, "
      "Tensor hidden_bias, Tensor weight) -> (Tensor, Tensor, Tensor, Tensor)");
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
