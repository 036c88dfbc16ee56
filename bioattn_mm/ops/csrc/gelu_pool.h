// GELU and average pooling in one pass: bioattn_mm/ops/gelu_pool.py says what it computes.
#pragma once

#include <ATen/core/Tensor.h>

namespace bioattn_mm {

// x is (B, H, W, C), float32, float64 or bfloat16, and contiguous. The output is (B, height, width, C) in its dtype.
at::Tensor gelu_pool_forward_cpu(const at::Tensor& x, int64_t height, int64_t width);
at::Tensor gelu_pool_backward_cpu(const at::Tensor& grad_output, const at::Tensor& x);

}  // namespace bioattn_mm
