// Schemas of the sliding window's operators, and their registration: CPU, CUDA, Meta, autograd and autocast.

#include "sliding_window.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace bioattn_mm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TwoTensors = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

Tensor call_qk(const Tensor& query, const Tensor& key, const Tensor& bias) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::sliding_window_qk", "")
                       .typed<Tensor(const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(query, key, bias);
}

ThreeTensors call_qk_backward(const Tensor& grad_logits, const Tensor& query, const Tensor& key) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::sliding_window_qk_backward", "")
                       .typed<ThreeTensors(const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(grad_logits, query, key);
}

Tensor call_av(const Tensor& weights, const Tensor& value) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::sliding_window_av", "")
                       .typed<Tensor(const Tensor&, const Tensor&)>();
  return op.call(weights, value);
}

TwoTensors call_av_backward(const Tensor& grad_output, const Tensor& weights, const Tensor& value) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("bioattn_mm::sliding_window_av_backward", "")
                       .typed<TwoTensors(const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(grad_output, weights, value);
}

// Shapes and dtypes alone, for tracing.
Tensor shaped_like(const Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); }

Tensor qk_meta(const Tensor& query, const Tensor&, const Tensor& bias) {
  c10::SymDimVector sizes(query.sym_sizes());
  sizes[4] = bias.sym_size(1);
  return at::empty_symint(sizes, query.options());
}

ThreeTensors qk_backward_meta(const Tensor& grad_logits, const Tensor& query, const Tensor& key) {
  const Tensor grad_bias = at::empty_symint({query.sym_size(3), grad_logits.sym_size(4)}, query.options());
  return {shaped_like(query), shaped_like(key), grad_bias};
}

Tensor av_meta(const Tensor&, const Tensor& value) { return shaped_like(value); }

TwoTensors av_backward_meta(const Tensor&, const Tensor& weights, const Tensor& value) {
  return {shaped_like(weights), shaped_like(value)};
}

struct SlidingWindowQK : torch::autograd::Function<SlidingWindowQK> {
  static Tensor forward(AutogradContext* context, const Tensor& query, const Tensor& key, const Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({query, key});
    return call_qk(query, key, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    const auto saved = context->get_saved_variables();
    auto [query, key, bias] = call_qk_backward(grad_outputs[0], saved[0], saved[1]);
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
    const auto saved = context->get_saved_variables();
    auto [weights, value] = call_av_backward(grad_outputs[0], saved[0], saved[1]);
    return {weights, value};
  }
};

Tensor qk_autograd(const Tensor& query, const Tensor& key, const Tensor& bias) {
  return SlidingWindowQK::apply(query, key, bias);
}

Tensor av_autograd(const Tensor& weights, const Tensor& value) { return SlidingWindowAV::apply(weights, value); }

// Autocast: as matrix products, in the dtype that it is set to.
template <c10::DeviceType device, c10::DispatchKey autocast_key>
struct Autocast {
  static Tensor cast(const Tensor& tensor) {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
  }

  static Tensor qk(const Tensor& query, const Tensor& key, const Tensor& bias) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(autocast_key);
    return call_qk(cast(query), cast(key), cast(bias));
  }

  static Tensor av(const Tensor& weights, const Tensor& value) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(autocast_key);
    return call_av(cast(weights), cast(value));
  }
};

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("sliding_window_qk(Tensor query, Tensor key, Tensor bias) -> Tensor");
  library.def(
      "sliding_window_qk_backward(Tensor grad_logits, Tensor query, Tensor key) -> (Tensor, Tensor, Tensor)");
  library.def("sliding_window_av(Tensor weights, Tensor value) -> Tensor");
  library.def("sliding_window_av_backward(Tensor grad_output, Tensor weights, Tensor value) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  using CPU = SlidingWindow<window_products_cpu, window_sums_cpu>;
  library.impl("sliding_window_qk", CPU::qk);
  library.impl("sliding_window_qk_backward", CPU::qk_backward);
  library.impl("sliding_window_av", CPU::av);
  library.impl("sliding_window_av_backward", CPU::av_backward);
}

#ifdef BIOATTN_WITH_CUDA
TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  using CUDA = SlidingWindow<window_products_cuda, window_sums_cuda>;
  library.impl("sliding_window_qk", CUDA::qk);
  library.impl("sliding_window_qk_backward", CUDA::qk_backward);
  library.impl("sliding_window_av", CUDA::av);
  library.impl("sliding_window_av_backward", CUDA::av_backward);
}
#endif

TORCH_LIBRARY_IMPL(bioattn_mm, Meta, library) {
  library.impl("sliding_window_qk", qk_meta);
  library.impl("sliding_window_qk_backward", qk_backward_meta);
  library.impl("sliding_window_av", av_meta);
  library.impl("sliding_window_av_backward", av_backward_meta);
}

TORCH_LIBRARY_IMPL(bioattn_mm, Autograd, library) {
  library.impl("sliding_window_qk", qk_autograd);
  library.impl("sliding_window_av", av_autograd);
  // A second derivative raises an error instead of being silently zero.
  library.impl("sliding_window_qk_backward", torch::autograd::autogradNotImplementedFallback());
  library.impl("sliding_window_av_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCPU, library) {
  using CPU = Autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>;
  library.impl("sliding_window_qk", CPU::qk);
  library.impl("sliding_window_av", CPU::av);
}

TORCH_LIBRARY_IMPL(bioattn_mm, AutocastCUDA, library) {
  using CUDA = Autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>;
  library.impl("sliding_window_qk", CUDA::qk);
  library.impl("sliding_window_av", CUDA::av);
}

}  // namespace
}  // namespace bioattn_mm
