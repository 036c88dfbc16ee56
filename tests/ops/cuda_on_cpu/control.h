// Operators that say how the emulation runs, for the library of the operators NAMESPACE.
#pragma once

#include "fibers.h"
#include "memory.h"
#include "ptx.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

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

// A copy with the same strides and offset, between guard pages within `guarded`.
inline at::Tensor copy(const at::Tensor& tensor) {
  const int64_t elements = tensor.storage().nbytes() / tensor.element_size();
  const at::Tensor all = at::empty({elements}, tensor.options());
  all.copy_(tensor.as_strided({elements}, {1}, 0));
  return all.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

}  // namespace cuda_on_cpu

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("set_seed", cuda_on_cpu::set_seed);
  library.def("leave_out_barrier(str place) -> ()", [](std::string place) { cuda_on_cpu::leave_out_barrier(place); });
  library.def("launches", cuda_on_cpu::launches);
  library.def("executed_instructions", cuda_on_cpu::executed_instructions);
}
