// relative_bias_attention on the CPU: aggregated attention with all tokens as pooled tokens, and no window.

#include "cpu/isa.h"

#include "check.h"

namespace bioattn_mm {
namespace {
namespace of_relative_bias_attention {

// The bias of a pair of tokens is a sum of rows of a table, as in CpuInputs.
struct BiasTable {
  static constexpr size_t kTensors = 4;

  Tensor table, rows, weights, columns;  // (heads, R, C), (H, H, n), (H, H, n - 1), (W, W)
};

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

ArgumentChecks check_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const BiasTable& bias, double) {
  const ArgumentChecks arguments("relative_bias_attention", "query", query, 5, "(B, H, W, heads, d)");
  arguments.check("key", key, query.sizes());
  arguments.check("value", value, query.sizes());
  const auto dtype = full_precision(query.scalar_type());
  arguments.check("bias", bias.table, {query.size(3), -1, -1}, dtype);
  arguments.check_rows({"rows", "weights"}, bias.rows, bias.weights, {query.size(1), query.size(1)}, dtype);
  arguments.check("columns", bias.columns, {query.size(2), query.size(2)}, kLong);
  return arguments;
}

void check_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const BiasTable& bias,
    const Tensor& output, const Tensor& logsumexp, double) {
  const ArgumentChecks arguments = check_forward(query, key, value, bias, 0);
  arguments.check("grad_output", grad_output, query.sizes());
  arguments.check("output", output, query.sizes());
  arguments.check("logsumexp", logsumexp, query.sizes().slice(0, 4), bias.table.scalar_type());
}

// Tokens as the kernels read them, with any stride from token to token.
Tensor with_dense_tokens(const Tensor& tokens) {
  return tokens.stride(4) == 1 && tokens.stride(3) == tokens.size(4) ? tokens : tokens.contiguous();
}

CpuInputs inputs_of_cpu(
    const Tensor& query, const Tensor& key, const Tensor& value, const BiasTable& bias, double scale) {
  CpuInputs cpu;
  cpu.query = with_dense_tokens(query), cpu.query_scale = scale;
  cpu.pooled_key = with_dense_tokens(key), cpu.pooled_value = with_dense_tokens(value);
  cpu.window_bias = empty({query.size(3), 0}, bias.table.options());
  cpu.pooled_bias = bias.table.contiguous();
  cpu.pooled_bias_rows = bias.rows.contiguous(), cpu.pooled_bias_weights = bias.weights.contiguous();
  cpu.pooled_bias_columns = bias.columns.contiguous();
  const int64_t columns = bias.table.size(2), tokens = query.size(1) * query.size(2);
  check_indices("rows", cpu.pooled_bias_rows, bias.table.size(1), "rows of bias");
  check_indices("columns", cpu.pooled_bias_columns, columns, "columns of bias");
  if (tokens > 64 || bias.rows.size(2) > 1) return cpu;
  // The kernels compute neighbours in a row together, and waste time on short rows: a small grid becomes one row.
  for (Tensor* each : {&cpu.query, &cpu.pooled_key, &cpu.pooled_value}) *each = each->as_one_row();
  cpu.pooled_bias = cpu.pooled_bias.view({bias.table.size(0), 1, bias.table.size(1) * columns});
  const Tensor pairs = empty({tokens, tokens}, on_cpu(kLong));
  int64_t* pair = DataOf{pairs};
  const int64_t *rows = DataOf{cpu.pooled_bias_rows}, *of_columns = DataOf{cpu.pooled_bias_columns};
  const int64_t height = query.size(1), width = query.size(2);
  for (int64_t i = 0; i < tokens; ++i)
    for (int64_t u = 0; u < height; ++u)
      for (int64_t v = 0; v < width; ++v)
        *pair++ = rows[i / width * height + u] * columns + of_columns[i % width * width + v];
  cpu.pooled_bias_rows = empty({1, 1, 1}, on_cpu(kLong)), cpu.pooled_bias_columns = pairs;
  *cpu.pooled_bias_rows.mutable_data_ptr<int64_t>() = 0;
  return cpu;
}

Forward forward(const Tensor& query, const Tensor& key, const Tensor& value, const BiasTable& bias, double scale) {
  if (query.numel() == 0)  // there is nothing to compute
    return {empty_like(query), empty(query.sizes().slice(0, 4), bias.table.options())};
  const CpuInputs cpu = inputs_of_cpu(query, key, value, bias, scale);
  const auto [output, logsumexp] = cpu_kernels(query.scalar_type()).attention_forward(cpu);
  return {output.view(query.sizes()), logsumexp.permute({0, 2, 3, 1}).reshape(query.sizes().slice(0, 4))};
}

Gradients backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const BiasTable& bias,
    const Tensor&, const Tensor& logsumexp, double scale) {
  if (query.numel() == 0) return {zeros_like(query), zeros_like(key), zeros_like(value), zeros_like(bias.table)};
  const CpuInputs cpu = inputs_of_cpu(query, key, value, bias, scale);
  const Span sizes = cpu.query.sizes();
  CpuInputs grad;
  grad.query = empty_like(cpu.query), grad.pooled_bias = empty_like(cpu.pooled_bias);
  grad.pooled_key = empty_like(cpu.pooled_key), grad.pooled_value = empty_like(cpu.pooled_value);
  cpu_kernels(query.scalar_type())
      .attention_backward(
          grad_output.reshape(sizes), cpu,
          logsumexp.permute({0, 3, 1, 2}).reshape({sizes[0], sizes[3], sizes[1], sizes[2]}), grad);
  const Span of_tokens = query.sizes();
  return {
      grad.query.view(of_tokens), grad.pooled_key.view(of_tokens), grad.pooled_value.view(of_tokens),
      grad.pooled_bias.view(bias.table.sizes())};
}

}  // namespace of_relative_bias_attention
}  // namespace
}  // namespace bioattn_mm
