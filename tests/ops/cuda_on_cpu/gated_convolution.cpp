// The CUDA kernels of ConvGLU's gate as operators on CPU tensors.

#include "gated_convolution.h"

#include "control.h"

using at::Tensor;
using cuda_on_cpu::copy;
using std::optional;

optional<Tensor> copy_if_given(const optional<Tensor>& tensor) {
  return tensor ? optional<Tensor>(copy(*tensor)) : std::nullopt;
}

Tensor forward(const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  return cuda_on_cpu::guarded([&] {
    return bioattn_mm::gated_convolution_forward_cuda(copy(x), copy_if_given(x_bias), copy(weight), copy(bias));
  });
}

bioattn_mm::GatedConvolutionGradients backward(
    const Tensor& grad_output, const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias) {
  return cuda_on_cpu::guarded([&] {
    return bioattn_mm::gated_convolution_backward_cuda(
        copy(grad_output), copy(x), copy_if_given(x_bias), copy(weight), copy(bias));
  });
}

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("gated_convolution", forward);
  library.def("gated_convolution_backward", backward);
}
