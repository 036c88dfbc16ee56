// The CUDA kernels of the table of the position bias as operators on CPU tensors.

#include "log_cpb.h"

#include "control.h"

using at::Tensor;
using cuda_on_cpu::copy;

Tensor forward(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  return cuda_on_cpu::guarded([&] {
    return bioattn_mm::log_cpb_table_forward_cuda(
        copy(vertical), copy(horizontal), copy(hidden_weight), copy(hidden_bias), copy(weight), copy(bias));
  });
}

bioattn_mm::LogCPBGradients backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  return cuda_on_cpu::guarded([&] {
    return bioattn_mm::log_cpb_table_backward_cuda(
        copy(grad_table), copy(vertical), copy(horizontal), copy(hidden_weight), copy(hidden_bias), copy(weight));
  });
}

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("log_cpb_table", forward);
  library.def("log_cpb_table_backward", backward);
}
