// The operators on CUDA.

#include "../aggregated_attention.h"
#include "../boxed.h"
#include "../cosine_attention.h"
#include "../deformable_attention.h"
#include "../gated_convolution.h"
#include "../layer_norm.h"
#include "../log_cpb.h"
#include "../sliding_window.h"
#include "../sparse_codes.h"
#include "../transnext_block.h"
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

// The kernels of CUDA that TransNeXtBlock calls.
struct CudaBlock {
  static constexpr auto add_norm = checked<cuda_kernel<add_norm_forward_cuda>, check_add_norm>;
  static constexpr auto add_norm_backward = checked<cuda_kernel<add_norm_backward_cuda>, check_add_norm_backward>;
  static constexpr auto cosine_attention = checked<cosine_attention_forward_cuda, check_cosine_attention>;
  static constexpr auto cosine_attention_backward =
      checked<cosine_attention_backward_cuda, check_cosine_attention_backward>;
  static constexpr auto gated_convolution =
      checked<cuda_kernel<gated_convolution_forward_cuda>, check_gated_convolution>;
  static constexpr auto gated_convolution_backward =
      checked<cuda_kernel<gated_convolution_backward_cuda>, check_gated_convolution_backward>;
  static constexpr auto gelu_pool_norm = checked<cuda_kernel<gelu_pool_norm_forward_cuda>, check_gelu_pool_norm>;
  static constexpr auto gelu_pool_norm_backward =
      checked<cuda_kernel<gelu_pool_norm_backward_cuda>, check_gelu_pool_norm_backward>;

  // The kernel pools to a grid that divides that of x, and has a backward pass.
  static GeluPoolNormResults pool_and_norm(
      const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t height, int64_t width, double eps) {
    const bool is_empty = height < 1 || width < 1;  // which the operator refuses
    if (is_empty || (x.size(1) % height == 0 && x.size(2) % width == 0))
      return gelu_pool_norm(x, weight, bias, height, width, eps);
    const Tensor activated = call("aten::gelu", "", x, std::string("none")).permute({0, 3, 1, 2});
    const Tensor pooled = call("aten::_adaptive_avg_pool2d", "", activated, std::vector<int64_t>{height, width});
    return norm_of_pooled(pooled.permute({0, 2, 3, 1}).contiguous(), weight, bias, eps);
  }

  static GeluPoolNormGradients pool_and_norm_backward(
      const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor&, const Tensor& pooled,
      const Tensor& mean, const Tensor& rstd) {
    return gelu_pool_norm_backward(grad, x, pooled, mean, rstd, weight);
  }
};

STABLE_TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("cuda_architectures() -> str");
  library.def("cuda_releases() -> int[]");
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CompositeExplicitAutograd, library) {
  library.impl("cuda_architectures", boxed<cuda_architectures>);
  library.impl("cuda_releases", boxed<cuda_releases>);
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CUDA, library) {
  library.impl("aggregated_attention", boxed<checked<aggregated_attention_forward_cuda, check_aggregated_attention>>);
  library.impl(
      "aggregated_attention_backward",
      boxed<checked<aggregated_attention_backward_cuda, check_aggregated_attention_backward>>);
  library.impl(
      "deformable_attention",
      boxed<checked<cuda_kernel<deformable_attention_forward_cuda>, check_deformable_attention>>);
  library.impl(
      "deformable_attention_backward",
      boxed<checked<cuda_kernel<deformable_attention_backward_cuda>, check_deformable_attention_backward>>);
  library.impl("gelu_pool_norm", boxed<CudaBlock::gelu_pool_norm>);
  library.impl("gelu_pool_norm_backward", boxed<CudaBlock::gelu_pool_norm_backward>);
  library.impl("log_cpb_table", boxed<checked<cuda_kernel<log_cpb_table_forward_cuda>, check_log_cpb_table>>);
  library.impl(
      "log_cpb_table_backward",
      boxed<checked<cuda_kernel<log_cpb_table_backward_cuda>, check_log_cpb_table_backward>>);
  TransNeXtBlock<CudaBlock>::add_to(library);
  SparseCodes<sparse_codes_forward_cuda, sparse_codes_backward_cuda>::add_to(library);
  SlidingWindow<window_products_cuda, window_sums_cuda>::add_to(library);
}

}  // namespace
}  // namespace bioattn_mm
