// The CUDA kernels of ConvGLU's gate as operators on CPU tensors.

#include "gated_convolution.h"

#include "control.h"

using cuda_on_cpu::Guarded;

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("gated_convolution", Guarded<&bioattn_mm::gated_convolution_forward_cuda>::call);
  library.def("gated_convolution_backward", Guarded<&bioattn_mm::gated_convolution_backward_cuda>::call);
}
