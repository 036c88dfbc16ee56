// Linear layers of bfloat16 tokens: bioattn_mm/ops/linear.py says why they are here.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace bioattn_mm {

// Whether the kernels below can run: the processor has the instructions.
bool linear_gradients_can_run_cpu();

// A float32 tensor in bfloat16, contiguous.
at::Tensor to_bfloat16_cpu(const at::Tensor& tensor);

// The gradients of weight, (M, C), and bias, (M), in float32, for tokens x (N, C) and gradients of the output (N, M), both
// in bfloat16 and contiguous.
std::tuple<at::Tensor, at::Tensor> linear_gradients_cpu(const at::Tensor& grad_output, const at::Tensor& x);

}  // namespace bioattn_mm
