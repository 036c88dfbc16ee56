// The operator gated_convolution on the CPU.

#include "gated_convolution.h"

#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_gated_convolution {

using std::optional;

constexpr int64_t kChannelMultiple = 16;

void check_cpu(const Tensor& x, const Tensor& weight) {
  check_value(
      weight.size(0) % kChannelMultiple == 0 && x.scalar_type() != kHalf,
      "gated_convolution on the CPU takes a multiple of ", kChannelMultiple, " channels and no float16, got ",
      weight.size(0), " of ", x.scalar_type());
}

Tensor or_zeros(const optional<Tensor>& x_bias, const Tensor& bias) {
  return x_bias ? x_bias->contiguous() : zeros({2 * bias.size(0)}, bias.options());
}

Tensor forward(const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  check_cpu(x, weight);
  const auto& kernels = cpu_kernels(x.scalar_type());
  return kernels.gated_convolution_forward(
      x.contiguous(), or_zeros(x_bias, bias), weight.contiguous(), bias.contiguous());
}

GatedConvolutionGradients backward(
    const Tensor& grad_output, const Tensor& x, const optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias) {
  check_cpu(x, weight);
  const auto& kernels = cpu_kernels(x.scalar_type());
  return kernels.gated_convolution_backward(
      grad_output.contiguous(), x.contiguous(), or_zeros(x_bias, bias), weight.contiguous(), bias.contiguous());
}

}  // namespace of_gated_convolution
}  // namespace
}  // namespace bioattn_mm
