// The operators on CUDA.

#include "../aggregated_attention.h"
#include "../boxed.h"
#include "../cosine_attention.h"
#include "../gated_convolution.h"
#include "../layer_norm.h"
#include "../log_cpb.h"
#include "../sliding_window.h"
#include "cuda/cuda_kernel.h"

#include <cuda_runtime.h>

namespace bioattn_mm {
namespace {

// The compute capabilities that the operators were compiled for, such as "8.0 9.0+PTX".
std::string cuda_architectures() { return BIOATTN_CUDA_ARCHITECTURES; }

// The CUDA releases of compiler and driver, such as 13000 and 12080; 0 without a driver.
std::vector<int64_t> cuda_releases() {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  return {CUDART_VERSION, driver};
}

STABLE_TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("cuda_architectures() -> str");
  library.def("cuda_releases() -> int[]");
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CompositeExplicitAutograd, library) {
  library.impl("cuda_architectures", boxed<cuda_architectures>);
  library.impl("cuda_releases", boxed<cuda_releases>);
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  library.impl("add_norm", boxed<cuda_kernel<add_norm_forward_cuda>, check_add_norm>);
  library.impl("add_norm_backward", boxed<cuda_kernel<add_norm_backward_cuda>, check_add_norm_backward>);
  library.impl("aggregated_attention", boxed<aggregated_attention_forward_cuda, check_aggregated_attention>);
  library.impl(
      "aggregated_attention_backward",
      boxed<aggregated_attention_backward_cuda, check_aggregated_attention_backward>);
  library.impl("cosine_attention", boxed<cosine_attention_forward_cuda, check_cosine_attention>);
  library.impl("cosine_attention_backward", boxed<cosine_attention_backward_cuda, check_cosine_attention_backward>);
  library.impl("gated_convolution", boxed<cuda_kernel<gated_convolution_forward_cuda>, check_gated_convolution>);
  library.impl(
      "gated_convolution_backward",
      boxed<cuda_kernel<gated_convolution_backward_cuda>, check_gated_convolution_backward>);
  library.impl("gelu_pool_norm", boxed<cuda_kernel<gelu_pool_norm_forward_cuda>, check_gelu_pool_norm>);
  library.impl(
      "gelu_pool_norm_backward", boxed<cuda_kernel<gelu_pool_norm_backward_cuda>, check_gelu_pool_norm_backward>);
  library.impl("log_cpb_table", boxed<cuda_kernel<log_cpb_table_forward_cuda>, check_log_cpb_table>);
  library.impl(
      "log_cpb_table_backward", boxed<cuda_kernel<log_cpb_table_backward_cuda>, check_log_cpb_table_backward>);
  SlidingWindow<window_products_cuda, window_sums_cuda>::add_to(library);
}

}  // namespace
}  // namespace bioattn_mm
