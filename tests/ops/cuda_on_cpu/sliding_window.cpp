// The sliding window's CUDA kernels as operators on CPU tensors.

#include "sliding_window.h"

#include "control.h"

using Kernels = bioattn_mm::SlidingWindow<bioattn_mm::window_products_cuda, bioattn_mm::window_sums_cuda>;

// `function` of copies of the tensors, between guard pages.
template <auto function>
struct Guarded;

template <typename Result, typename... Tensors, Result (*function)(Tensors...)>
struct Guarded<function> {
  static Result call(Tensors... tensors) {
    return cuda_on_cpu::guarded([&] { return function(cuda_on_cpu::copy(tensors)...); });
  }
};

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("sliding_window_qk", Guarded<&Kernels::qk>::call);
  library.def("sliding_window_qk_backward", Guarded<&Kernels::qk_backward>::call);
  library.def("sliding_window_av", Guarded<&Kernels::av>::call);
  library.def("sliding_window_av_backward", Guarded<&Kernels::av_backward>::call);
}
