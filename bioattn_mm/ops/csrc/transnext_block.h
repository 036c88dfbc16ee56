// The two halves of a block of TransNeXt, from products of matrices and other operators: what the layers compute in
// bioattn_mm/systems/transnext (attention.py, conv_glu.py), with the norms and residuals around them.
#pragma once

#include "boxed.h"
#include "cosine_attention.h"
#include "gated_convolution.h"
#include "layer_norm.h"

namespace bioattn_mm {

template <size_t number>
using Tensors = std::array<Tensor, number>;

// Parameters of the halves, with C channels; those of norms have the dtype that kernels take, and `full` is float32
// or, for float64 tokens, float64.
struct AggregateParameters {
  static constexpr size_t kTensors = 8;

  Tensor q_weight, q_bias, kv_weight, kv_bias;            // (C, C), (C), (2 C, C), (2 C)
  Tensor pool_weight, pool_bias, norm_weight, norm_bias;  // (C, C, 1, 1), (C), (C), (C)
};
struct BlockParameters {
  static constexpr size_t kTensors = 12;

  Tensor proj_weight, proj_bias, norm_weight, norm_bias;  // (C, C), (C), (C), (C)
  Tensor fc1_weight, fc1_bias, conv_weight, conv_bias;    // (2 D, C), full: (2 D), (D, 1, 3, 3), (D)
  Tensor fc2_weight, fc2_bias, next_weight, next_bias;    // (C, D), (C), (C), (C)
};

inline Tensor transposed(const Tensor& matrix) { return matrix.permute({1, 0}); }
inline Tensor product(const Tensor& matrix, const Tensor& other) { return call("aten::mm", "", matrix, other); }
inline Tensor joined(const std::vector<torch::stable::Tensor>& parts, int64_t axis) {
  return call("aten::cat", "", parts, axis);
}
inline Tensor linear(const Tensor& rows, const Tensor& weight, const Tensor& bias) {
  return call("aten::linear", "", rows, weight, std::optional<Tensor>(bias));
}

inline Tensor sum_of(const Tensor& first, const Tensor& second) { return torch::stable::subtract(first, second, -1); }

// Tokens (B, H, W, ...) as the rows of a matrix.
inline Tensor rows_of(const Tensor& tokens) {
  int64_t channels = 1;
  for (const int64_t size : tokens.sizes().slice(3)) channels *= size;
  return tokens.reshape({tokens.size(0) * tokens.size(1) * tokens.size(2), channels});
}

// Rows as tokens (B, H, W, ...) of a grid; the axes after it are `last`.
inline Tensor tokens_of(const Tensor& rows, const Tensor& grid, std::initializer_list<int64_t> last) {
  std::vector<int64_t> sizes = grid.sizes().slice(0, 3).vec();
  sizes.insert(sizes.end(), last);
  return rows.view(sizes);
}

// LayerNorm of pooled tokens, these, and their means and reciprocal standard deviations.
inline GeluPoolNormResults norm_of_pooled(
    const Tensor& pooled, const Tensor& weight, const Tensor& bias, double eps) {
  const std::vector<int64_t> sizes = {pooled.size(3)};
  const auto [normed, mean, rstd] =
      call_for<3>("aten::native_layer_norm", "", pooled, sizes, std::optional(weight), std::optional(bias), eps);
  return {normed, pooled, tokens_of(mean, pooled, {}), tokens_of(rstd, pooled, {})};
}

// `Kernels` has the kernels of a device, each after a check of its arguments.
template <typename Kernels>
struct TransNeXtBlock {
  // The output, and what the backward pass takes; of_attention are arguments of cosine_attention from `scale` on.
  static Tensors<10> aggregate(
      const Tensor& x, const AggregateParameters& p, const Tensors<9>& of_attention, double eps, bool for_backward) {
    check_aggregate(x, p, of_attention);
    const int64_t channels = x.size(3), heads = of_attention[0].size(0);
    const Tensor &rows = of_attention[4], &columns = of_attention[6];
    // One product for the three layers of tokens: the kernels read their parts where they are.
    const Tensor weight = joined({p.q_weight, p.kv_weight, p.pool_weight.reshape({channels, channels})}, 0);
    const Tensor projected = linear(rows_of(x), weight, joined({p.q_bias, p.kv_bias, p.pool_bias}, 0));
    const auto [normed, pooled, mean, rstd] = Kernels::pool_and_norm(
        tokens_of(projected, x, {4, channels}).select(3, 3), p.norm_weight, p.norm_bias, rows.size(1),
        columns.size(1), eps);
    const Tensor of_heads = tokens_of(projected, x, {4, heads, channels / heads});
    const Tensor pooled_key_value =
        tokens_of(linear(rows_of(normed), p.kv_weight, p.kv_bias), normed, {2, heads, channels / heads});
    const auto [output, logsumexp, rounding] =
        Kernels::cosine_attention(inputs_of(of_heads, pooled_key_value, of_attention), for_backward);
    return {
        tokens_of(output, x, {channels}),
        weight,
        of_heads,
        pooled,
        mean,
        rstd,
        normed,
        pooled_key_value,
        logsumexp,
        rounding};
  }

  static Tensors<15> aggregate_backward(
      const Tensor& grad_output, const Tensor& x, const AggregateParameters& p, const Tensors<9>& of_attention,
      const Tensors<10>& results) {
    const auto& [output, weight, any_projected, pooled, mean, rstd, normed, pooled_key_value, logsumexp, rounding] =
        results;
    const ArgumentChecks arguments = check_aggregate(x, p, of_attention);
    const int64_t channels = x.size(3), heads = of_attention[0].size(0);
    arguments.check("projected", any_projected, {x.size(0), x.size(1), x.size(2), 4, heads, channels / heads});
    arguments.check("grad_output", grad_output, x.sizes());
    arguments.check("output", output, x.sizes());
    arguments.check("joint_weight", weight, {4 * channels, channels});
    arguments.check("pooled", pooled, {x.size(0), of_attention[4].size(1), of_attention[6].size(1), channels});
    arguments.check("normed", normed, pooled.sizes());
    for (const Tensor& each : {mean, rstd})
      arguments.check("mean and rstd", each, pooled.sizes().slice(0, 3), full_precision(x.scalar_type()));
    const Tensor projected = any_projected.contiguous();
    const Tensor to_pool = tokens_of(projected, x, {4, channels}).select(3, 3);
    const CosineInputs inputs = inputs_of(projected, pooled_key_value, of_attention);
    const Span sizes = inputs.query.sizes();
    const CosineGradients gradients = Kernels::cosine_attention_backward(
        grad_output.reshape(sizes), inputs, output.reshape(sizes), logsumexp, rounding);
    const auto& [of_query, of_kv, of_pooled, of_scale, of_embedding, of_window, of_table, of_tokens, of_token_bias] =
        gradients;
    const Tensor pooled_rows = rows_of(of_pooled);
    const auto [of_to_pool, of_norm_weight, of_norm_bias] = Kernels::pool_and_norm_backward(
        product(pooled_rows, p.kv_weight).view(normed.sizes()), to_pool, p.norm_weight, p.norm_bias, pooled, mean,
        rstd);
    const Tensor of_projected = joined({rows_of(of_query), rows_of(of_kv), rows_of(of_to_pool)}, 1);
    const Tensor of_weight = product(transposed(of_projected), rows_of(x)), of_bias = of_projected.sum({0});
    const auto part = [&](const Tensor& joint, int64_t first, int64_t number) {
      return joint.narrow(0, first * channels, number * channels);
    };
    return {
        product(of_projected, weight).view(x.sizes()),
        part(of_weight, 0, 1),
        part(of_bias, 0, 1),
        sum_of(part(of_weight, 1, 2), product(transposed(pooled_rows), rows_of(normed))),
        sum_of(part(of_bias, 1, 2), pooled_rows.sum({0})),
        part(of_weight, 3, 1).view(p.pool_weight.sizes()),
        part(of_bias, 3, 1),
        of_norm_weight,
        of_norm_bias,
        of_scale,
        of_embedding,
        of_window,
        of_table,
        of_tokens,
        of_token_bias};
  }

  // The next norm, the block's tokens, and what the backward pass takes.
  static Tensors<10> after_attention(
      const Tensor& x, const Tensor& attended, const BlockParameters& p,
      const std::optional<Tensor>& attention_factor, const std::optional<Tensor>& mlp_factor, double eps,
      bool for_backward) {
    check_after_attention("x", x, attended, p);
    auto [normed, sum, mean, rstd] =
        project_add_norm(x, attended, p.proj_weight, p.proj_bias, p.norm_weight, p.norm_bias, attention_factor, eps);
    Tensor to_gate = tokens_of(product(rows_of(normed), transposed(p.fc1_weight)), x, {p.fc1_weight.size(0)});
    const auto nothing = [&] { return empty({0}, x.options()); };
    if (!for_backward) normed = nothing();  // what only the backward pass takes is freed as soon as it can be
    const Tensor gated = Kernels::gated_convolution(to_gate, std::optional(p.fc1_bias), p.conv_weight, p.conv_bias);
    if (!for_backward) to_gate = nothing();
    const auto [next, output, next_mean, next_rstd] =
        project_add_norm(sum, gated, p.fc2_weight, p.fc2_bias, p.next_weight, p.next_bias, mlp_factor, eps);
    if (for_backward) return {next, output, sum, normed, mean, rstd, to_gate, gated, next_mean, next_rstd};
    Tensors<10> results = {next, output};
    std::generate(results.begin() + 2, results.end(), nothing);
    return results;
  }

  static Tensors<14> after_attention_backward(
      const Tensor& grad_next, const std::optional<Tensor>& grad_output, const Tensor& attended,
      const BlockParameters& p, const std::optional<Tensor>& attention_factor,
      const std::optional<Tensor>& mlp_factor, const Tensors<10>& results) {
    const auto& [next, output, sum, normed, mean, rstd, to_gate, gated, next_mean, next_rstd] = results;
    const ArgumentChecks arguments = check_after_attention("sum", sum, attended, p);
    const int64_t hidden = p.conv_weight.size(0);
    arguments.check("next", next, sum.sizes());
    arguments.check("normed", normed, sum.sizes());
    arguments.check("to_gate", to_gate, {sum.size(0), sum.size(1), sum.size(2), 2 * hidden});
    arguments.check("gated", gated, {sum.size(0), sum.size(1), sum.size(2), hidden});
    const auto [of_sum, of_gated, of_fc2_weight, of_fc2_bias, of_next_weight, of_next_bias] =
        project_add_norm_backward(
            grad_next, grad_output, gated, p.fc2_weight, output, next_mean, next_rstd, mlp_factor, p.next_weight);
    const auto [of_to_gate, of_fc1_bias, of_conv_weight, of_conv_bias] =
        Kernels::gated_convolution_backward(of_gated, to_gate, std::optional(p.fc1_bias), p.conv_weight, p.conv_bias);
    const Tensor of_rows = rows_of(of_to_gate);
    const auto [of_x, of_attended, of_proj_weight, of_proj_bias, of_norm_weight, of_norm_bias] =
        project_add_norm_backward(
            product(of_rows, p.fc1_weight).view(normed.sizes()), of_sum, attended, p.proj_weight, sum, mean, rstd,
            attention_factor, p.norm_weight);
    const Tensor of_fc1_weight = product(transposed(of_rows), rows_of(normed));
    return {of_x,        of_attended,    of_proj_weight, of_proj_bias,  of_norm_weight, of_norm_bias,   of_fc1_weight,
            of_fc1_bias, of_conv_weight, of_conv_bias,   of_fc2_weight, of_fc2_bias,    of_next_weight, of_next_bias};
  }

  // The operators of a block, and those in `Kernels` that other layers call, too.
  static void add_to(torch::stable::detail::StableLibrary& library) {
    library.impl("add_norm", boxed<Kernels::add_norm>);
    library.impl("add_norm_backward", boxed<Kernels::add_norm_backward>);
    library.impl("cosine_attention", boxed<Kernels::cosine_attention>);
    library.impl("cosine_attention_backward", boxed<Kernels::cosine_attention_backward>);
    library.impl("gated_convolution", boxed<Kernels::gated_convolution>);
    library.impl("gated_convolution_backward", boxed<Kernels::gated_convolution_backward>);
    library.impl("aggregate", boxed<aggregate>);
    library.impl("aggregate_backward", boxed<aggregate_backward>);
    library.impl("after_attention", boxed<after_attention>);
    library.impl("after_attention_backward", boxed<after_attention_backward>);
  }

 private:
  // Shapes and dtypes of what no operator checks that is called here.
  static ArgumentChecks check_aggregate(
      const Tensor& x, const AggregateParameters& p, const Tensors<9>& of_attention) {
    const ArgumentChecks arguments("aggregate", "x", x, 4, "(B, H, W, C)");
    const int64_t channels = x.size(3), heads = of_attention[0].numel();
    check_value(
        heads > 0 && channels % heads == 0, "aggregate: ", heads, " heads do not divide ", channels, " channels");
    arguments.check("scale", of_attention[0], {heads}, full_precision(x.scalar_type()));
    arguments.check("q_weight", p.q_weight, {channels, channels});
    arguments.check("q_bias", p.q_bias, {channels});
    arguments.check("kv_weight", p.kv_weight, {2 * channels, channels});
    arguments.check("kv_bias", p.kv_bias, {2 * channels});
    arguments.check("pool_weight", p.pool_weight, {channels, channels, 1, 1});
    arguments.check("pool_bias", p.pool_bias, {channels});
    check_norm(arguments, x, p.norm_weight, p.norm_bias);
    arguments.check("pooled_bias_rows", of_attention[4], {x.size(1), -1, -1}, kLong);
    arguments.check("pooled_bias_columns", of_attention[6], {x.size(2), -1}, kLong);
    return arguments;
  }

  static ArgumentChecks check_after_attention(
      const char* name, const Tensor& x, const Tensor& attended, const BlockParameters& p) {
    const ArgumentChecks arguments("after_attention", name, x, 4, "(B, H, W, C)");
    const int64_t channels = x.size(3), hidden = p.conv_weight.size(0);
    arguments.check("attended", attended, x.sizes());
    arguments.check("proj_weight", p.proj_weight, {channels, channels});
    arguments.check("proj_bias", p.proj_bias, {channels});
    check_norm(arguments, x, p.norm_weight, p.norm_bias);
    arguments.check("fc1_weight", p.fc1_weight, {2 * hidden, channels});
    arguments.check("fc2_weight", p.fc2_weight, {channels, hidden});
    arguments.check("fc2_bias", p.fc2_bias, {channels});
    check_norm(arguments, x, p.next_weight, p.next_bias);
    return arguments;
  }

  static void check_norm(const ArgumentChecks& arguments, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    arguments.check("weight of a norm", weight, {x.size(3)}, dtype_of_norm(x));
    arguments.check("bias of a norm", bias, {x.size(3)}, dtype_of_norm(x));
  }

  static CosineInputs inputs_of(
      const Tensor& projected, const Tensor& pooled_key_value, const Tensors<9>& of_attention) {
    const auto with_projections = [&](const auto&... others) {
      return CosineInputs{projected.select(3, 0), projected.narrow(3, 1, 2), pooled_key_value, others...};
    };
    return std::apply(with_projections, of_attention);
  }

  // The norm of sum = x + factor * linear(branch), the sum, and its means and reciprocal standard deviations.
  static AddNormResults project_add_norm(
      const Tensor& x, const Tensor& branch, const Tensor& weight, const Tensor& bias, const Tensor& norm_weight,
      const Tensor& norm_bias, const std::optional<Tensor>& factor, double eps) {
    const Tensor added = product(rows_of(branch), transposed(weight));
    return Kernels::add_norm(
        x, tokens_of(added, x, {weight.size(0)}), std::optional(bias), factor, norm_weight, norm_bias, eps);
  }

  // The gradients of x, branch, weight and bias, and those of the norm.
  static Tensors<6> project_add_norm_backward(
      const Tensor& grad_norm, const std::optional<Tensor>& grad_sum, const Tensor& branch, const Tensor& weight,
      const Tensor& sum, const Tensor& mean, const Tensor& rstd, const std::optional<Tensor>& factor,
      const Tensor& norm_weight) {
    const auto [of_x, of_added, of_bias, of_norm_weight, of_norm_bias] =
        Kernels::add_norm_backward(grad_norm, grad_sum, sum, mean, rstd, factor, norm_weight);
    const Tensor rows = rows_of(of_added);
    const Tensor of_branch = product(rows, weight).view(branch.sizes());
    return {of_x, of_branch, product(transposed(rows), rows_of(branch)), of_bias, of_norm_weight, of_norm_bias};
  }
};

}  // namespace bioattn_mm
