// The operator log_cpb_table on the CPU.

#include "log_cpb.h"

#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_log_cpb {

Tensor forward(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  return cpu_kernels(vertical.scalar_type())
      .log_cpb_table_forward(
          vertical.contiguous(), horizontal.contiguous(), hidden_weight.contiguous(), hidden_bias.contiguous(),
          weight.contiguous(), bias.contiguous());
}

LogCPBGradients backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  return cpu_kernels(vertical.scalar_type())
      .log_cpb_table_backward(
          grad_table.contiguous(), vertical.contiguous(), horizontal.contiguous(), hidden_weight.contiguous(),
          hidden_bias.contiguous(), weight.contiguous());
}

}  // namespace of_log_cpb
}  // namespace
}  // namespace bioattn_mm
