// The operators of the sliding window for PyTorch: schemas, autograd, autocast, and kernels for CPU, CUDA and tracing.

#include "sliding_window.h"

#include "dispatch.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {
namespace of_sliding_window {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TwoTensors = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

// The operators while PyTorch traces: results without values.
struct Meta {
  static Tensor qk(const Tensor& query, const Tensor&, const Tensor& bias) {
    c10::SymDimVector sizes(query.sym_sizes());
    sizes[4] = bias.sym_size(1);
    return at::empty_symint(sizes, query.options());
  }

  static ThreeTensors qk_backward(const Tensor& grad_logits, const Tensor& query, const Tensor& key) {
    const Tensor grad_bias = at::empty_symint({query.sym_size(3), grad_logits.sym_size(4)}, query.options());
    return {shaped_like(query), shaped_like(key), grad_bias};
  }

  static Tensor av(const Tensor&, const Tensor& value) { return shaped_like(value); }

  static TwoTensors av_backward(const Tensor&, const Tensor& weights, const Tensor& value) {
    return {shaped_like(weights), shaped_like(value)};
  }
};

Tensor call_qk(const Tensor& query, const Tensor& key, const Tensor& bias) {
  static const auto op = find_operator<decltype(Meta::qk)>("bioattn_mm::sliding_window_qk");
  return op.call(query, key, bias);
}

Tensor call_av(const Tensor& weights, const Tensor& value) {
  static const auto op = find_operator<decltype(Meta::av)>("bioattn_mm::sliding_window_av");
  return op.call(weights, value);
}

struct SlidingWindowQK : torch::autograd::Function<SlidingWindowQK> {
  static Tensor forward(AutogradContext* context, const Tensor& query, const Tensor& key, const Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({query, key});
    return call_qk(query, key, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(Meta::qk_backward)>("bioattn_mm::sliding_window_qk_backward");
    const auto saved = context->get_saved_variables();
    auto [query, key, bias] = op.call(grad_outputs[0], saved[0], saved[1]);
    return {query, key, bias};
  }
};

struct SlidingWindowAV : torch::autograd::Function<SlidingWindowAV> {
  static Tensor forward(AutogradContext* context, const Tensor& weights, const Tensor& value) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({weights, value});
    return call_av(weights, value);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    static const auto op = find_operator<decltype(Meta::av_backward)>("bioattn_mm::sliding_window_av_backward");
    const auto saved = context->get_saved_variables();
    auto [weights, value] = op.call(grad_outputs[0], saved[0], saved[1]);
    return {weights, value};
  }
};

Tensor qk_autograd(const Tensor& query, const Tensor& key, const Tensor& bias) {
  return SlidingWindowQK::apply(query, key, bias);
}

Tensor av_autograd(const Tensor& weights, const Tensor& value) { return SlidingWindowAV::apply(weights, value); }

template <c10::DeviceType device>
Tensor qk_autocast(const Tensor& query, const Tensor& key, const Tensor& bias) {
  const Autocast<device> cast;
  return call_qk(cast(query), cast(key), cast(bias));
}

template <c10::DeviceType device>
Tensor av_autocast(const Tensor& weights, const Tensor& value) {
  const Autocast<device> cast;
  return call_av(cast(weights), cast(value));
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("sliding_window_qk(Tensor query, Tensor key, Tensor bias) -> Tensor");
  library.def(
      "sliding_window_qk_backward(Tensor grad_logits, Tensor query, Tensor key) -> (Tensor, Tensor, Tensor)");
  library.def("sliding_window_av(Tensor weights, Tensor value) -> Tensor");
  library.def("sliding_window_av_backward(Tensor grad_output, Tensor weights, Tensor value) -> (Tensor, Tensor)");
}

template <typename Kernels>
void register_kernels(torch::Library& library) {
  library.impl("sliding_window_qk", Kernels::qk);
  library.impl("sliding_window_qk_backward", Kernels::qk_backward);
  library.impl("sliding_window_av", Kernels::av);
  library.impl("sliding_window_av_backward", Kernels::av_backward);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) { register_kernels<Meta>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  register_kernels<SlidingWindow<window_products_cpu, window_sums_cpu>>(library);
}
#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  register_kernels<SlidingWindow<window_products_cuda, window_sums_cuda>>(library);
}
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("sliding_window_qk", qk_autograd);
  library.impl("sliding_window_av", av_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("sliding_window_qk_backward", torch::autograd::autogradNotImplementedFallback());
  library.impl("sliding_window_av_backward", torch::autograd::autogradNotImplementedFallback());
}

template <c10::DeviceType device>
void register_autocast(torch::Library& library) {
  library.impl("sliding_window_qk", qk_autocast<device>);
  library.impl("sliding_window_av", av_autocast<device>);
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCPU, library) { register_autocast<c10::kCPU>(library); }
TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCUDA, library) { register_autocast<c10::kCUDA>(library); }

}  // namespace of_sliding_window
}  // namespace
}  // namespace bioattn_mm
