// Operators that say how the emulation runs, for the library of the operators NAMESPACE.
#pragma once

#include "fibers.h"
#include "memory.h"
#include "ptx.h"

#include <tensor.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace cuda_on_cpu {

// What a seed decides: the order of the threads, and at which end of their tensors kernels meet a guard page.
inline bool guard_the_end = true;

inline void set_seed(int64_t seed) {
  set_order(seed);
  guard_the_end = seed % 2 == 0;
}

// Runs `function` while all tensors are allocated between guard pages.
template <typename Function>
auto guarded(const Function& function) {
  const GuardPages guard(guard_the_end);
  return function();
}

// A tensor of the kernels, and back.
inline bioattn_mm::Tensor of_kernels(const at::Tensor& tensor) {
  return torch::stable::Tensor(torch::aot_inductor::new_tensor_handle(at::Tensor(tensor)));
}

inline at::Tensor of_operators(const bioattn_mm::Tensor& tensor) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(tensor.get());
}

template <typename... Tensors>
auto of_operators(const std::tuple<Tensors...>& tensors) {
  return std::apply([](const auto&... each) { return std::make_tuple(of_operators(each)...); }, tensors);
}

// A copy with the same strides and offset, between guard pages within `guarded`.
inline bioattn_mm::Tensor copy(const at::Tensor& tensor) {
  const int64_t elements = tensor.storage().nbytes() / tensor.element_size();
  const at::Tensor all = at::empty({elements}, tensor.options());
  all.copy_(tensor.as_strided({elements}, {1}, 0));
  return of_kernels(all.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()));
}

inline std::optional<bioattn_mm::Tensor> copy(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(copy(*tensor)) : std::nullopt;
}

inline double copy(double number) { return number; }
inline int64_t copy(int64_t number) { return number; }
inline bool copy(bool condition) { return condition; }

// A function of the kernels' tensors as an operator, which calls it with copies between guard pages.
template <auto function, typename Signature = decltype(function)>
struct Guarded;

template <typename T>
struct OfOperators {
  using Type = T;
};
template <>
struct OfOperators<const bioattn_mm::Tensor&> {
  using Type = const at::Tensor&;
};
template <>
struct OfOperators<const bioattn_mm::StridedTokens&> : OfOperators<const bioattn_mm::Tensor&> {};
template <>
struct OfOperators<const std::optional<bioattn_mm::Tensor>&> {
  using Type = const std::optional<at::Tensor>&;
};

template <auto function, typename Result, typename... Types>
struct Guarded<function, Result (*)(Types...)> {
  static auto call(typename OfOperators<Types>::Type... tensors) {
    return guarded([&] { return of_operators(function(copy(tensors)...)); });
  }
};

}  // namespace cuda_on_cpu

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("set_seed", cuda_on_cpu::set_seed);
  library.def("leave_out_barrier(str place) -> ()", [](std::string place) { cuda_on_cpu::leave_out_barrier(place); });
  library.def("launches", cuda_on_cpu::launches);
  library.def("executed_instructions", cuda_on_cpu::executed_instructions);
}
