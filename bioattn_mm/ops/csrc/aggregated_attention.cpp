// The operator aggregated_attention on the CPU.

#include "aggregated_attention.h"

#include "cpu/isa.h"

#include <numeric>

namespace bioattn_mm {
namespace {
namespace of_aggregated_attention {

CpuInputs inputs_of_cpu(const Inputs& inputs) {
  const Inputs dense = map(inputs, [](const Tensor& input) { return input.contiguous(); });
  const int64_t width = inputs.pooled_bias.size(2), pooled_width = inputs.pooled_bias.size(3);
  CpuInputs cpu;
  cpu.query = dense.query, cpu.key = dense.key, cpu.value = dense.value;
  cpu.pooled_key = dense.pooled_key, cpu.pooled_value = dense.pooled_value;
  cpu.window_bias = at_least_float(dense.window_bias);
  cpu.pooled_bias = at_least_float(dense.pooled_bias).flatten(2);
  // The only input whose values, not only their shapes, decide where memory is read and written.
  check_indices("pooled_bias_rows", dense.pooled_bias_rows, inputs.pooled_bias.size(1), "rows of pooled_bias");
  const auto pairs = dense.pooled_bias_rows.sizes();
  cpu.pooled_bias_rows = dense.pooled_bias_rows.view({pairs[0], pairs[1], 1});
  cpu.pooled_bias_columns = empty({width, pooled_width}, dense.pooled_bias_rows.options());
  int64_t* columns = cpu.pooled_bias_columns.mutable_data_ptr<int64_t>();
  std::iota(columns, columns + width * pooled_width, 0);
  cpu.token_weights = dense.token_weights;
  return cpu;
}

RoundedForward forward(const Inputs& inputs, bool for_backward) {
  const Tensor& query = inputs.query;
  // The backward pass of the CPU does not read the rounding, but all devices have the same shapes.
  const Tensor rounding = empty_rounding(query, for_backward);
  if (query.numel() == 0) {  // there is nothing to compute
    const Options options = query.options().dtype(full_precision(query.scalar_type()));
    return {empty_like(query), empty(query.sizes().slice(0, 4), options), rounding};
  }
  auto [output, logsumexp] = cpu_kernels(query.scalar_type()).attention_forward(inputs_of_cpu(inputs));
  return {output, logsumexp.permute({0, 2, 3, 1}).contiguous(), rounding};
}

Gradients backward(
    const Tensor& grad_output, const Inputs& inputs, const Tensor&, const Tensor& logsumexp, const Tensor&) {
  if (inputs.query.numel() == 0) return to_gradients(map(inputs, zeros_like));
  const CpuInputs cpu = inputs_of_cpu(inputs);
  CpuInputs grad;
  grad.query = empty_like(cpu.query), grad.key = empty_like(cpu.key), grad.value = empty_like(cpu.value);
  grad.pooled_key = empty_like(cpu.pooled_key), grad.pooled_value = empty_like(cpu.pooled_value);
  grad.pooled_bias = empty_like(cpu.pooled_bias), grad.token_weights = empty_like(cpu.token_weights);
  const auto dtype = inputs.query.scalar_type();
  cpu_kernels(dtype).attention_backward(
      grad_output.contiguous(), cpu, logsumexp.permute({0, 3, 1, 2}).contiguous(), grad);
  grad.window_bias = grad.window_bias.to(dtype);
  grad.pooled_bias = grad.pooled_bias.view(inputs.pooled_bias.sizes()).to(dtype);
  return to_gradients(grad);
}

}  // namespace of_aggregated_attention
}  // namespace
}  // namespace bioattn_mm
