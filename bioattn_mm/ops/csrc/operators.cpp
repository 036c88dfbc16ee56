// The operators on the CPU in one translation unit: reading PyTorch's headers takes most of the time of compiling.

#include "aggregated_attention.cpp"
#include "boxed.h"
#include "cosine_attention.cpp"
#include "peripheral_attention.cpp"
#include "relative_bias_attention.cpp"
#include "schemas.cpp"
#include "transnext_block.h"

namespace bioattn_mm {
namespace {

// The version of the package that the library was compiled from. The Python files beside it compare it with theirs.
std::string version() { return BIOATTN_VERSION; }

// The kernels of the CPU that TransNeXtBlock calls.
struct CpuBlock {
  static constexpr auto add_norm = checked<cpu_kernel<&CpuKernels::add_norm_forward>, check_add_norm>;
  static constexpr auto add_norm_backward =
      checked<cpu_kernel<&CpuKernels::add_norm_backward>, check_add_norm_backward>;
  static constexpr auto cosine_attention = checked<of_cosine_attention::forward, check_cosine_attention>;
  static constexpr auto cosine_attention_backward =
      checked<of_cosine_attention::backward, check_cosine_attention_backward>;
  static constexpr auto gated_convolution =
      checked<cpu_kernel<&CpuKernels::gated_convolution_forward>, check_gated_convolution>;
  static constexpr auto gated_convolution_backward =
      checked<cpu_kernel<&CpuKernels::gated_convolution_backward>, check_gated_convolution_backward>;
  static constexpr auto gelu_pool = checked<cpu_kernel<&CpuKernels::gelu_pool_forward>, check_gelu_pool>;
  static constexpr auto gelu_pool_backward =
      checked<cpu_kernel<&CpuKernels::gelu_pool_backward>, check_gelu_pool_backward>;

  static GeluPoolNormResults pool_and_norm(
      const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t height, int64_t width, double eps) {
    return norm_of_pooled(gelu_pool(x, height, width), weight, bias, eps);
  }

  static GeluPoolNormGradients pool_and_norm_backward(
      const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pooled,
      const Tensor& mean, const Tensor& rstd) {
    const std::array<int64_t, 1> sizes = {x.size(3)};
    const std::array<bool, 3> all = {true, true, true};
    const auto [of_pooled, of_weight, of_bias] = call_for<3>(
        "aten::native_layer_norm_backward", "", grad, pooled, Span(sizes), mean.contiguous(), rstd.contiguous(),
        std::optional(weight), std::optional(bias), torch::headeronly::HeaderOnlyArrayRef<bool>(all));
    return {gelu_pool_backward(of_pooled, x), of_weight, of_bias};
  }
};

void sparse_codes_forward(const SparseCodesStep& step, const Tensor& product, const Tensor& next) {
  cpu_kernels(next.scalar_type()).sparse_codes_forward(step, product, next);
}

void sparse_codes_backward(
    const SparseCodesStep& step, const Tensor& grad, const Tensor& product, const Tensor& of_sum,
    const Tensor& scaled, const Tensor& of_length, const Tensor& of_penalty) {
  cpu_kernels(grad.scalar_type()).sparse_codes_backward(step, grad, product, of_sum, scaled, of_length, of_penalty);
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CompositeExplicitAutograd, library) {
  library.impl("version", boxed<version>);
  library.impl("cpu_capability", boxed<cpu_capability>);
  library.impl("cpu_capabilities", boxed<cpu_capabilities>);
  library.impl("set_cpu_capability", boxed<set_cpu_capability>);
}

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CPU, library) {
  library.impl("aggregated_attention", boxed<checked<of_aggregated_attention::forward, check_aggregated_attention>>);
  library.impl(
      "aggregated_attention_backward",
      boxed<checked<of_aggregated_attention::backward, check_aggregated_attention_backward>>);
  library.impl(
      "deformable_attention",
      boxed<checked<cpu_kernel<&CpuKernels::deformable_attention_forward>, check_deformable_attention>>);
  library.impl(
      "deformable_attention_backward",
      boxed<checked<cpu_kernel<&CpuKernels::deformable_attention_backward>, check_deformable_attention_backward>>);
  library.impl("gelu_pool", boxed<CpuBlock::gelu_pool>);
  library.impl("gelu_pool_backward", boxed<CpuBlock::gelu_pool_backward>);
  library.impl("log_cpb_table", boxed<checked<cpu_kernel<&CpuKernels::log_cpb_table_forward>, check_log_cpb_table>>);
  library.impl(
      "log_cpb_table_backward",
      boxed<checked<cpu_kernel<&CpuKernels::log_cpb_table_backward>, check_log_cpb_table_backward>>);
  library.impl(
      "peripheral_attention",
      boxed<checked<of_peripheral_attention::forward, of_peripheral_attention::check_forward>>);
  library.impl(
      "peripheral_attention_backward",
      boxed<checked<of_peripheral_attention::backward, of_peripheral_attention::check_backward>>);
  library.impl(
      "relative_bias_attention",
      boxed<checked<of_relative_bias_attention::forward, of_relative_bias_attention::check_forward>>);
  library.impl(
      "relative_bias_attention_backward",
      boxed<checked<of_relative_bias_attention::backward, of_relative_bias_attention::check_backward>>);
  TransNeXtBlock<CpuBlock>::add_to(library);
  SparseCodes<sparse_codes_forward, sparse_codes_backward>::add_to(library);
  SlidingWindow<cpu_kernel<&CpuKernels::window_products>, cpu_kernel<&CpuKernels::window_sums>>::add_to(library);
}

}  // namespace
}  // namespace bioattn_mm
