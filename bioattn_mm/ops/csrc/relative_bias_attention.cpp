// The operator relative_bias_attention on the CPU.

#include "relative_bias_attention.h"

#include "aggregated_attention.h"
#include "check.h"
#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_relative_bias_attention {

using Forward = std::tuple<Tensor, Tensor>;
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

// Whether the kernels of aggregated attention are used, with all tokens as pooled tokens and no window: they are
// faster with instructions for bfloat16.
bool is_aggregated(const Tensor& query) { return query.scalar_type() == kBFloat16 && has_bfloat16_instructions(); }

CpuInputs without_window(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  const auto tokens = [](const Tensor& tensor) {
    return tensor.stride(4) == 1 && tensor.stride(3) == tensor.size(4) ? tensor : tensor.contiguous();
  };
  // The indices in the table of the offsets between two rows, or two columns.
  const auto offsets = [&](int64_t length) {
    Tensor indices = empty({length, length}, bias.options().dtype(kLong));
    int64_t* index = indices.mutable_data_ptr<int64_t>();
    for (int64_t k = 0; k < length * length; ++k) index[k] = k / length - k % length + length - 1;
    return indices;
  };
  CpuInputs inputs;
  inputs.query = tokens(scale == 1 ? query : multiply_by(query, scale));
  inputs.pooled_key = tokens(key), inputs.pooled_value = tokens(value);
  inputs.window_bias = empty({query.size(3), 0}, bias.options());
  inputs.pooled_bias = bias.contiguous();
  inputs.pooled_bias_rows = offsets(query.size(1)), inputs.pooled_bias_columns = offsets(query.size(2));
  return inputs;
}

// The bias as the kernels read it: contiguous, with the usual stride from head to head. PyTorch allows any stride
// where there is a single head, but the kernels use it for the gradient, too, which has a table for each image.
Tensor dense(const Tensor& bias) { return bias.contiguous().flatten().view(bias.sizes()); }

Forward forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  if (query.numel() == 0)  // there is nothing to compute
    return {empty_like(query), empty(query.sizes().slice(0, 4), bias.options())};
  if (is_aggregated(query)) {
    const auto [output, logsumexp] =
        cpu_kernels(kBFloat16).attention_forward(without_window(query, key, value, bias, scale));
    return {output, logsumexp.permute({0, 2, 3, 1}).contiguous()};
  }
  const auto& kernels = cpu_kernels(kFloat);
  auto [output, logsumexp] = kernels.relative_bias_attention_forward(
      at_least_float(query), at_least_float(key), at_least_float(value), dense(bias), scale);
  return {output.to(query.scalar_type()), logsumexp};
}

Gradients backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& output, const Tensor& logsumexp, double scale) {
  if (query.numel() == 0) return {zeros_like(query), zeros_like(key), zeros_like(value), zeros_like(bias)};
  if (is_aggregated(query)) {
    CpuInputs grad;
    grad.query = empty_like(query);
    grad.pooled_key = empty_like(key), grad.pooled_value = empty_like(value);
    grad.pooled_bias = empty_like(bias);
    const auto& kernels = cpu_kernels(kBFloat16);
    kernels.attention_backward(
        grad_output.contiguous(), without_window(query, key, value, bias, scale),
        logsumexp.permute({0, 3, 1, 2}).contiguous(), grad);
    return {
        scale == 1 ? grad.query : multiply_by(grad.query, scale), grad.pooled_key, grad.pooled_value,
        grad.pooled_bias};
  }
  const auto& kernels = cpu_kernels(kFloat);
  auto [grad_query, grad_key, grad_value, grad_bias] = kernels.relative_bias_attention_backward(
      at_least_float(grad_output), at_least_float(query), at_least_float(key), at_least_float(value), dense(bias),
      at_least_float(output), logsumexp, scale);
  const auto dtype = query.scalar_type();
  return {grad_query.to(dtype), grad_key.to(dtype), grad_value.to(dtype), grad_bias};
}

}  // namespace of_relative_bias_attention
}  // namespace
}  // namespace bioattn_mm
