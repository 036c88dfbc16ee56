// The operators on the CPU in one translation unit: reading PyTorch's headers takes most of the time of compiling.

#include "aggregated_attention.cpp"
#include "boxed.h"
#include "cosine_attention.cpp"
#include "peripheral_attention.cpp"
#include "relative_bias_attention.cpp"
#include "schemas.cpp"

namespace bioattn_mm {
namespace {

// The version of the package that the library was compiled from. The Python files beside it compare it with theirs.
std::string version() { return BIOATTN_VERSION; }

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CompositeExplicitAutograd, library) {
  library.impl("version", boxed<version>);
  library.impl("cpu_capability", boxed<cpu_capability>);
  library.impl("cpu_capabilities", boxed<cpu_capabilities>);
  library.impl("set_cpu_capability", boxed<set_cpu_capability>);
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("add_norm", boxed<cpu_kernel<&CpuKernels::add_norm_forward>, check_add_norm>);
  library.impl("add_norm_backward", boxed<cpu_kernel<&CpuKernels::add_norm_backward>, check_add_norm_backward>);
  library.impl("aggregated_attention", boxed<of_aggregated_attention::forward, check_aggregated_attention>);
  library.impl(
      "aggregated_attention_backward", boxed<of_aggregated_attention::backward, check_aggregated_attention_backward>);
  library.impl("cosine_attention", boxed<of_cosine_attention::forward, check_cosine_attention>);
  library.impl("cosine_attention_backward", boxed<of_cosine_attention::backward, check_cosine_attention_backward>);
  library.impl(
      "gated_convolution", boxed<cpu_kernel<&CpuKernels::gated_convolution_forward>, check_gated_convolution>);
  library.impl(
      "gated_convolution_backward",
      boxed<cpu_kernel<&CpuKernels::gated_convolution_backward>, check_gated_convolution_backward>);
  library.impl("gelu_pool", boxed<cpu_kernel<&CpuKernels::gelu_pool_forward>, check_gelu_pool>);
  library.impl("gelu_pool_backward", boxed<cpu_kernel<&CpuKernels::gelu_pool_backward>, check_gelu_pool_backward>);
  library.impl("log_cpb_table", boxed<cpu_kernel<&CpuKernels::log_cpb_table_forward>, check_log_cpb_table>);
  library.impl(
      "log_cpb_table_backward", boxed<cpu_kernel<&CpuKernels::log_cpb_table_backward>, check_log_cpb_table_backward>);
  library.impl(
      "peripheral_attention", boxed<of_peripheral_attention::forward, of_peripheral_attention::check_forward>);
  library.impl(
      "peripheral_attention_backward",
      boxed<of_peripheral_attention::backward, of_peripheral_attention::check_backward>);
  library.impl(
      "relative_bias_attention",
      boxed<of_relative_bias_attention::forward, of_relative_bias_attention::check_forward>);
  library.impl(
      "relative_bias_attention_backward",
      boxed<of_relative_bias_attention::backward, of_relative_bias_attention::check_backward>);
  SlidingWindow<cpu_kernel<&CpuKernels::window_products>, cpu_kernel<&CpuKernels::window_sums>>::add_to(library);
}

}  // namespace
}  // namespace bioattn_mm
