// The sliding window's CUDA kernels as operators on CPU tensors.

#include "sliding_window.h"

#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(bioattn_mm_cuda_on_cpu, library) {
  using Kernels = bioattn_mm::SlidingWindow<bioattn_mm::window_products_cuda, bioattn_mm::window_sums_cuda>;
  library.def("sliding_window_qk", Kernels::qk);
  library.def("sliding_window_qk_backward", Kernels::qk_backward);
  library.def("sliding_window_av", Kernels::av);
  library.def("sliding_window_av_backward", Kernels::av_backward);
}
