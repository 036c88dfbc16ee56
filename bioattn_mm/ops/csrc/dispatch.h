// What the registrations of the operators have in common.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

namespace bioattn_mm {

// Handle of an operator by its name, such as "bioattn_mm::log_cpb_table". The search is slow: keep it in a static
// variable.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// An uninitialised tensor with the shape and dtype of another: the result of an operator while PyTorch traces.
inline at::Tensor shaped_like(const at::Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options());
}

// Room for what rounding takes from an output of the shape of `query`, of which only half precision has any.
inline at::Tensor empty_rounding(const at::Tensor& query) {
  return at::isReducedFloatingType(query.scalar_type()) ? shaped_like(query) : at::empty({0}, query.options());
}

// While it lives, autocast is off; called with a tensor, it gives what autocast makes of it: its own dtype for
// floating-point tensors except float64, as for a matrix product.
template <c10::DeviceType device>
struct Autocast {
  at::Tensor operator()(const at::Tensor& tensor) const {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
  }

  c10::impl::ExcludeDispatchKeyGuard off{
      device == c10::kCPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA};
};

}  // namespace bioattn_mm
