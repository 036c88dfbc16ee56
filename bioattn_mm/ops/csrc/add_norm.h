// Residual, stochastic depth and LayerNorm in one pass: bioattn_mm/ops/add_norm.py says what it computes.
#pragma once

#include "check.h"

#include <optional>
#include <tuple>

namespace bioattn_mm {

inline ArgumentChecks check_add_norm_tokens(
    const char* name, const Tensor& tokens, const std::optional<Tensor>& factor, const Tensor& weight) {
  const ArgumentChecks arguments("add_norm", name, tokens, 4, "(B, H, W, C)", {kHalf, kBFloat16, kFloat});
  if (factor) arguments.check("factor", *factor, {tokens.size(0)}, kFloat);
  arguments.check("weight", weight, {tokens.size(3)});
  return arguments;
}

inline void check_add_norm(
    const Tensor& x, const Tensor& branch, const std::optional<Tensor>& branch_bias,
    const std::optional<Tensor>& factor, const Tensor& weight, const Tensor& bias, double) {
  const ArgumentChecks arguments = check_add_norm_tokens("x", x, factor, weight);
  arguments.check("branch", branch, x.sizes());
  if (branch_bias) arguments.check("branch_bias", *branch_bias, {x.size(3)});
  arguments.check("bias", bias, {x.size(3)});
}

inline void check_add_norm_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& factor, const Tensor& weight) {
  const ArgumentChecks arguments = check_add_norm_tokens("sum", sum, factor, weight);
  arguments.check("grad_output", grad_output, sum.sizes());
  if (grad_sum) arguments.check("grad_sum", *grad_sum, sum.sizes());
  arguments.check("mean", mean, {sum.size(0), sum.size(1), sum.size(2)}, kFloat);
  arguments.check("rstd", rstd, {sum.size(0), sum.size(1), sum.size(2)}, kFloat);
}

// The normalised sum, the sum, and for each token the mean and the reciprocal of the standard deviation.
using AddNormResults = std::tuple<Tensor, Tensor, Tensor, Tensor>;
// The gradients of x, branch, branch_bias, weight and bias.
using AddNormGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// x and branch are (B, H, W, C), float32, float16 or bfloat16, with C even; branch_bias, weight and bias (C) in their
// dtype, factor (B) in float32.
AddNormResults add_norm_forward_cuda(
    const Tensor& x, const Tensor& branch, const std::optional<Tensor>& branch_bias,
    const std::optional<Tensor>& factor, const Tensor& weight, const Tensor& bias, double eps);
AddNormGradients add_norm_backward_cuda(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& factor, const Tensor& weight);

}  // namespace bioattn_mm
