// The operator cosine_attention on the CPU.

#include "cosine_attention.h"

#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_cosine_attention {

CpuInputs inputs_of_cpu(const CosineInputs& any_inputs) {
  const CosineInputs inputs = map(any_inputs, [](const auto& input) -> Tensor {
    if constexpr (std::is_same_v<decltype(input), const StridedTokens&>)
      return dense(input);
    else
      return input.contiguous();
  });
  CpuInputs cpu;
  cpu.query = inputs.query, cpu.key = inputs.key_value.select(3, 0), cpu.value = inputs.key_value.select(3, 1);
  cpu.pooled_key = inputs.pooled_key_value.select(3, 0), cpu.pooled_value = inputs.pooled_key_value.select(3, 1);
  cpu.window_bias = inputs.window_bias, cpu.pooled_bias = inputs.pooled_bias;
  // The only inputs whose values, not only their shapes, decide where memory is read and written.
  check_indices("pooled_bias_rows", inputs.pooled_bias_rows, inputs.pooled_bias.size(1), "rows of pooled_bias");
  check_indices(
      "pooled_bias_columns", inputs.pooled_bias_columns, inputs.pooled_bias.size(2), "columns of pooled_bias");
  cpu.pooled_bias_rows = inputs.pooled_bias_rows, cpu.pooled_bias_weights = inputs.pooled_bias_weights;
  cpu.pooled_bias_columns = inputs.pooled_bias_columns;
  cpu.scale = inputs.scale, cpu.query_embedding = inputs.query_embedding;
  cpu.tokens = inputs.tokens, cpu.token_bias = inputs.token_bias;
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
  if (inputs.query.numel() == 0) return to_gradients(map(inputs, zeros_like));
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
