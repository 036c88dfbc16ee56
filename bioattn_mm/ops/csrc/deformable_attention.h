// Multi-scale deformable attention: bioattn_mm/ops/deformable_attention.py says what it computes.
#pragma once

#include "check.h"

namespace bioattn_mm {

inline ArgumentChecks check_deformable_attention(
    const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights) {
  const ArgumentChecks arguments("deformable_attention", "value", value, 4, "(B, N, heads, d)");
  arguments.check("shapes", shapes, {-1, 2}, kLong);
  const ScalarType dtype = full_precision(value.scalar_type());
  const int64_t levels = shapes.size(0);
  arguments.check("weights", weights, {value.size(0), -1, value.size(2), levels, -1}, dtype);
  const std::vector<int64_t> points = {value.size(0), weights.size(1), value.size(2), levels, weights.size(4), 2};
  arguments.check("locations", locations, points, dtype);
  return arguments;
}

inline void check_deformable_attention_backward(
    const Tensor& grad_output, const Tensor& value, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights) {
  check_deformable_attention(value, shapes, locations, weights)
      .check("grad_output", grad_output, {value.size(0), weights.size(1), value.size(2), value.size(3)});
}

// The kernels of the CPU; the output is (B, Q, heads, d). Of half precision value, output and gradient of value are.
using DeformableForward =
    Tensor(const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights);
using DeformableBackward = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor& grad_output, const Tensor& value, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights);

}  // namespace bioattn_mm
