// The sliding window's CUDA kernels as operators on CPU tensors.

#include "sliding_window.h"

#include "control.h"

using cuda_on_cpu::Guarded;
using Kernels = bioattn_mm::SlidingWindow<bioattn_mm::window_products_cuda, bioattn_mm::window_sums_cuda>;

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("sliding_window_qk", Guarded<&Kernels::qk>::call);
  library.def("sliding_window_qk_backward", Guarded<&Kernels::qk_backward>::call);
  library.def("sliding_window_av", Guarded<&Kernels::av>::call);
  library.def("sliding_window_av_backward", Guarded<&Kernels::av_backward>::call);
}
