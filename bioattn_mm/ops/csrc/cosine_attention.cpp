// The operator cosine_attention on the CPU.

#include "cosine_attention.h"

#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_cosine_attention {

CpuInputs inputs_of_cpu(const CosineInputs& inputs) {
  const Tensor tokens_of_window = inputs.key_value.contiguous(), pooled_tokens = inputs.pooled_key_value.contiguous();
  CpuInputs cpu;
  cpu.query = inputs.query.contiguous();
  cpu.key = tokens_of_window.select(3, 0), cpu.value = tokens_of_window.select(3, 1);
  cpu.pooled_key = pooled_tokens.select(3, 0), cpu.pooled_value = pooled_tokens.select(3, 1);
  cpu.window_bias = inputs.window_bias.contiguous();
  cpu.pooled_bias = inputs.pooled_bias.contiguous();
  cpu.pooled_bias_rows = inputs.pooled_bias_rows.contiguous();
  cpu.pooled_bias_columns = inputs.pooled_bias_columns.contiguous();
  // The only inputs whose values, not only their shapes, decide where memory is read and written.
  check_indices("pooled_bias_rows", cpu.pooled_bias_rows, inputs.pooled_bias.size(1), "rows of pooled_bias");
  check_indices("pooled_bias_columns", cpu.pooled_bias_columns, inputs.pooled_bias.size(2), "columns of pooled_bias");
  cpu.scale = inputs.scale.contiguous();
  cpu.query_embedding = inputs.query_embedding.contiguous();
  cpu.tokens = inputs.tokens.contiguous();
  cpu.token_bias = inputs.token_bias.contiguous();
  return cpu;
}

// The logsumexp has one axis, because its order is that of the device's kernels. Only CUDA uses the rounding.
RoundedForward forward(const CosineInputs& inputs, bool for_backward) {
  const Tensor& query = inputs.query;
  const Tensor rounding = empty_rounding(query, for_backward);
  if (query.numel() == 0) {  // there is nothing to compute
    const int64_t queries = query.size(0) * query.size(1) * query.size(2) * query.size(3);
    return {empty_like(query), empty({queries}, inputs.scale.options()), rounding};
  }
  const auto [output, logsumexp] = cpu_kernels(query.scalar_type()).attention_forward(inputs_of_cpu(inputs));
  return {output, logsumexp.view({logsumexp.numel()}), rounding};
}

CosineGradients backward(
    const Tensor& grad_output, const CosineInputs& inputs, const Tensor&, const Tensor& logsumexp, const Tensor&) {
  if (inputs.query.numel() == 0)
    return {zeros_like(inputs.query),       zeros_like(inputs.key_value),       zeros_like(inputs.pooled_key_value),
            zeros_like(inputs.scale),       zeros_like(inputs.query_embedding), zeros_like(inputs.window_bias),
            zeros_like(inputs.pooled_bias), zeros_like(inputs.tokens),          zeros_like(inputs.token_bias)};
  const Tensor grad_key_value = empty_like(inputs.key_value);
  const Tensor grad_pooled_key_value = empty_like(inputs.pooled_key_value);
  CpuInputs grad;
  grad.query = empty_like(inputs.query);
  grad.key = grad_key_value.select(3, 0), grad.value = grad_key_value.select(3, 1);
  grad.pooled_key = grad_pooled_key_value.select(3, 0), grad.pooled_value = grad_pooled_key_value.select(3, 1);
  grad.pooled_bias = empty_like(inputs.pooled_bias);
  const auto sizes = inputs.query.sizes();
  const Tensor shaped = logsumexp.contiguous().view({sizes[0], sizes[3], sizes[1], sizes[2]});
  const auto& kernels = cpu_kernels(inputs.query.scalar_type());
  kernels.attention_backward(grad_output.contiguous(), inputs_of_cpu(inputs), shaped, grad);
  return {grad.query,       grad_key_value,   grad_pooled_key_value, grad.scale,     grad.query_embedding,
          grad.window_bias, grad.pooled_bias, grad.tokens,           grad.token_bias};
}

}  // namespace of_cosine_attention
}  // namespace
}  // namespace bioattn_mm
