// GELU and average pooling in one pass: bioattn_mm/ops/gelu_pool.py says what it computes.
#pragma once

#include "check.h"

namespace bioattn_mm {

// x is (B, H, W, C), float32, float64 or bfloat16, and contiguous. The output is (B, height, width, C) in its dtype.
using GeluPoolForward = Tensor(const Tensor& x, int64_t height, int64_t width);
using GeluPoolBackward = Tensor(const Tensor& grad_output, const Tensor& x);

}  // namespace bioattn_mm
