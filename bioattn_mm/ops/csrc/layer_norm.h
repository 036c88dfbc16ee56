// LayerNorm and what is before it in one pass: bioattn_mm/ops/add_norm.py and gelu_pool.py say what they compute.
#pragma once

#include "check.h"

namespace bioattn_mm {

// The dtype of the norm's parameters: on the CPU they have full precision, as under PyTorch's autocast.
inline ScalarType dtype_of_norm(const Tensor& tokens) {
  return tokens.device().is_cpu() ? full_precision(tokens.scalar_type()) : tokens.scalar_type();
}

inline ArgumentChecks check_add_norm_tokens(
    const char* name, const Tensor& tokens, const std::optional<Tensor>& factor, const Tensor& weight) {
  const ArgumentChecks arguments("add_norm", name, tokens, 4, "(B, H, W, C)");
  check_value(
      !tokens.device().is_cpu() || (tokens.scalar_type() != kHalf && tokens.size(3) >= 16),
      "add_norm on the CPU takes 16 channels or more and no float16, got ", tokens.size(3), " of ",
      tokens.scalar_type());
  if (factor) arguments.check("factor", *factor, {tokens.size(0)}, full_precision(tokens.scalar_type()));
  arguments.check("weight", weight, {tokens.size(3)}, dtype_of_norm(tokens));
  return arguments;
}

inline void check_add_norm(
    const Tensor& x, const Tensor& branch, const std::optional<Tensor>& branch_bias,
    const std::optional<Tensor>& factor, const Tensor& weight, const Tensor& bias, double) {
  const ArgumentChecks arguments = check_add_norm_tokens("x", x, factor, weight);
  arguments.check("branch", branch, x.sizes());
  if (branch_bias) arguments.check("branch_bias", *branch_bias, {x.size(3)});
  arguments.check("bias", bias, {x.size(3)}, dtype_of_norm(x));
}

inline void check_add_norm_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& factor, const Tensor& weight) {
  const ArgumentChecks arguments = check_add_norm_tokens("sum", sum, factor, weight);
  arguments.check("grad_output", grad_output, sum.sizes());
  if (grad_sum) arguments.check("grad_sum", *grad_sum, sum.sizes());
  arguments.check("mean", mean, sum.sizes().slice(0, 3), full_precision(sum.scalar_type()));
  arguments.check("rstd", rstd, sum.sizes().slice(0, 3), full_precision(sum.scalar_type()));
}

// The normalised sum, the sum, and for each token the mean and the reciprocal of the standard deviation.
using AddNormResults = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using AddNormGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// x and branch are (B, H, W, C), on CUDA C is even; branch_bias has their dtype, factor (B) full precision.
using AddNormForward = AddNormResults(
    const Tensor& x, const Tensor& branch, const std::optional<Tensor>& branch_bias,
    const std::optional<Tensor>& factor, const Tensor& weight, const Tensor& bias, double eps);
using AddNormBackward = AddNormGradients(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& factor, const Tensor& weight);
AddNormForward add_norm_forward_cuda;
AddNormBackward add_norm_backward_cuda;

// Raises a ValueError unless tokens (B, H, W, C) are divided into whole cells of (height, width) pooled ones.
inline ArgumentChecks check_gelu_pool_norm_tokens(
    const Tensor& x, const Tensor& weight, int64_t height, int64_t width) {
  const ArgumentChecks arguments("gelu_pool_norm", "x", x, 4, "(B, H, W, C)", {kHalf, kBFloat16, kFloat});
  check_value(
      height >= 1 && width >= 1 && x.size(1) >= 1 && x.size(2) >= 1 && x.size(1) % height == 0 &&
          x.size(2) % width == 0,
      "gelu_pool_norm: the grid must divide that of x, got ", height, " x ", width, " and x ",
      text_of_sizes(x.sizes()));
  arguments.check("weight", weight, {x.size(3)});
  return arguments;
}

inline void check_gelu_pool_norm(
    const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t height, int64_t width, double) {
  check_gelu_pool_norm_tokens(x, weight, height, width).check("bias", bias, {x.size(3)});
}

inline void check_gelu_pool_norm_backward(
    const Tensor& grad_output, const Tensor& x, const Tensor& pooled, const Tensor& mean, const Tensor& rstd,
    const Tensor& weight) {
  check_value(pooled.defined() && pooled.dim() == 4, "gelu_pool_norm: pooled must be (B, height, width, C)");
  const ArgumentChecks arguments = check_gelu_pool_norm_tokens(x, weight, pooled.size(1), pooled.size(2));
  arguments.check("pooled", pooled, {x.size(0), -1, -1, x.size(3)});
  arguments.check("grad_output", grad_output, pooled.sizes());
  arguments.check("mean", mean, pooled.sizes().slice(0, 3), kFloat);
  arguments.check("rstd", rstd, pooled.sizes().slice(0, 3), kFloat);
}

// The normalised pooled tokens, the pooled tokens, and their means and reciprocal standard deviations.
using GeluPoolNormResults = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using GeluPoolNormGradients = std::tuple<Tensor, Tensor, Tensor>;

// x is (B, H, W, C), float32, float16 or bfloat16, with C even; the parameters (C) have its dtype.
GeluPoolNormResults gelu_pool_norm_forward_cuda(
    const StridedTokens& x, const Tensor& weight, const Tensor& bias, int64_t height, int64_t width, double eps);
GeluPoolNormGradients gelu_pool_norm_backward_cuda(
    const Tensor& grad_output, const StridedTokens& x, const Tensor& pooled, const Tensor& mean, const Tensor& rstd,
    const Tensor& weight);

}  // namespace bioattn_mm
