// GELU and average pooling in one pass: bioattn_mm/ops/gelu_pool.py says what it computes.
#pragma once

#include "check.h"

namespace bioattn_mm {

inline ArgumentChecks check_gelu_pool(const Tensor& x, int64_t height, int64_t width) {
  const ArgumentChecks arguments("gelu_pool", "x", x, 4, "(B, H, W, C)", {kBFloat16, kFloat, kDouble});
  const int64_t least_channels = x.scalar_type() == kDouble ? 8 : 16;  // a vector of the widest kernel, 64 bytes
  check_value(
      x.size(3) >= least_channels && x.size(1) >= 1 && x.size(2) >= 1, "gelu_pool: x must have ", least_channels,
      " channels or more, and tokens, got ", text_of_sizes(x.sizes()));
  check_value(height >= 1 && width >= 1, "gelu_pool: the grid must be 1 x 1 or larger, got ", height, " x ", width);
  return arguments;
}

inline void check_gelu_pool_backward(const Tensor& grad_output, const Tensor& x) {
  const ArgumentChecks arguments = check_gelu_pool(x, 1, 1);
  arguments.check("grad_output", grad_output, {x.size(0), -1, -1, x.size(3)});
  check_gelu_pool(x, grad_output.size(1), grad_output.size(2));
}

// x is (B, H, W, C), float32, float64 or bfloat16. The output is (B, height, width, C) in its dtype.
using GeluPoolForward = Tensor(const StridedTokens& x, int64_t height, int64_t width);
using GeluPoolBackward = Tensor(const Tensor& grad_output, const StridedTokens& x);

}  // namespace bioattn_mm
