// relative_bias_attention on the CPU: aggregated attention with all tokens as pooled tokens, and no window.

#include "cpu/isa.h"

#include "check.h"

namespace bioattn_mm {
namespace {
namespace of_relative_bias_attention {

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

ArgumentChecks check_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double) {
  const ArgumentChecks arguments("relative_bias_attention", "query", query, 5, "(B, H, W, heads, d)");
  arguments.check("key", key, query.sizes());
  arguments.check("value", value, query.sizes());
  arguments.check(
      "bias", bias, {query.size(3), 2 * query.size(1) - 1, 2 * query.size(2) - 1},
      full_precision(query.scalar_type()));
  return arguments;
}

void check_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& output, const Tensor& logsumexp, double) {
  const ArgumentChecks arguments = check_forward(query, key, value, bias, 0);
  arguments.check("grad_output", grad_output, query.sizes());
  arguments.check("output", output, query.sizes());
  arguments.check("logsumexp", logsumexp, query.sizes().slice(0, 4), bias.scalar_type());
}

// Tokens as the kernels read them: float32 or float64, or bfloat16 where there are instructions for it.
Tensor tokens_for_kernels(const Tensor& tokens) {
  const bool is_native = tokens.scalar_type() == kBFloat16 && has_bfloat16_instructions();
  const Tensor numbers = is_native ? tokens : at_least_float(tokens);
  return numbers.stride(4) == 1 && numbers.stride(3) == numbers.size(4) ? numbers : numbers.contiguous();
}

// The indices in the table of the offsets between all pairs of tokens of a grid.
Tensor offsets_of_pairs(int64_t height, int64_t width) {
  Tensor indices = empty({height * width, height * width}, on_cpu(kLong));
  int64_t* index = indices.mutable_data_ptr<int64_t>();
  for (int64_t query = 0; query < height * width; ++query)
    for (int64_t key = 0; key < height * width; ++key) {
      const int64_t row = query / width - key / width + height - 1, column = query % width - key % width + width - 1;
      *index++ = row * (2 * width - 1) + column;
    }
  return indices;
}

CpuInputs inputs_of_cpu(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  CpuInputs cpu;
  cpu.query = tokens_for_kernels(query);
  if (scale != 1) cpu.query = multiply_by(cpu.query, scale);
  cpu.pooled_key = tokens_for_kernels(key), cpu.pooled_value = tokens_for_kernels(value);
  cpu.window_bias = empty({query.size(3), 0}, bias.options());
  const int64_t height = query.size(1), width = query.size(2);
  if (height * width > 64) {
    cpu.pooled_bias = bias.contiguous();
    cpu.pooled_bias_rows = offsets_of_pairs(1, height), cpu.pooled_bias_columns = offsets_of_pairs(1, width);
    return cpu;
  }
  // The kernels compute neighbours in a row together, and waste time on short rows: a small grid becomes one row.
  for (Tensor* tokens : {&cpu.query, &cpu.pooled_key, &cpu.pooled_value})
    *tokens = tokens->reshape({query.size(0), 1, height * width, query.size(3), query.size(4)});
  cpu.pooled_bias = bias.reshape({bias.size(0), 1, bias.size(1) * bias.size(2)});
  cpu.pooled_bias_rows = offsets_of_pairs(1, 1), cpu.pooled_bias_columns = offsets_of_pairs(height, width);
  return cpu;
}

Forward forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  if (query.numel() == 0)  // there is nothing to compute
    return {empty_like(query), empty(query.sizes().slice(0, 4), bias.options())};
  const CpuInputs cpu = inputs_of_cpu(query, key, value, bias, scale);
  const auto [output, logsumexp] = cpu_kernels(cpu.query.scalar_type()).attention_forward(cpu);
  return {
      output.view(query.sizes()).to(query.scalar_type()),
      logsumexp.permute({0, 2, 3, 1}).reshape(query.sizes().slice(0, 4))};
}

Gradients backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor&, const Tensor& logsumexp, double scale) {
  if (query.numel() == 0) return {zeros_like(query), zeros_like(key), zeros_like(value), zeros_like(bias)};
  const CpuInputs cpu = inputs_of_cpu(query, key, value, bias, scale);
  const Span sizes = cpu.query.sizes();
  CpuInputs grad;
  grad.query = empty_like(cpu.query), grad.pooled_bias = empty_like(cpu.pooled_bias);
  grad.pooled_key = empty_like(cpu.pooled_key), grad.pooled_value = empty_like(cpu.pooled_value);
  cpu_kernels(cpu.query.scalar_type())
      .attention_backward(
          tokens_for_kernels(grad_output).reshape(sizes), cpu,
          logsumexp.permute({0, 3, 1, 2}).reshape({sizes[0], sizes[3], sizes[1], sizes[2]}), grad);
  if (scale != 1) grad.query = multiply_by(grad.query, scale);
  const auto of_tokens = [&](const Tensor& gradient) { return gradient.view(query.sizes()).to(query.scalar_type()); };
  return {
      of_tokens(grad.query), of_tokens(grad.pooled_key), of_tokens(grad.pooled_value),
      grad.pooled_bias.view(bias.sizes())};
}

}  // namespace of_relative_bias_attention
}  // namespace
}  // namespace bioattn_mm
