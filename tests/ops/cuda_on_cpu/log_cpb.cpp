// The CUDA kernels of the table of the position bias as operators on CPU tensors.

#include "log_cpb.h"

#include "control.h"

using at::Tensor;
using cuda_on_cpu::copy;

Tensor forward(const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor& bias) {
  return cuda_on_cpu::guarded([&] {
    return bioattn_mm::log_cpb_table_forward_cuda(copy(vertical), copy(horizontal), copy(weight), copy(bias));
  });
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  return cuda_on_cpu::guarded([&] {
    return bioattn_mm::log_cpb_table_backward_cuda(copy(grad_table), copy(vertical), copy(horizontal), copy(weight));
  });
}

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("log_cpb_table", forward);
  library.def("log_cpb_table_backward", backward);
}
