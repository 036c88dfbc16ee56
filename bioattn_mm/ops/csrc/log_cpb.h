// Table of the log-spaced position bias: bioattn_mm/ops/log_cpb.py says what it computes.
#pragma once

#include "check.h"

namespace bioattn_mm {

// These sizes, with the number of MLPs first where `weight` has that axis.
inline std::vector<int64_t> sizes_of_mlps(const Tensor& weight, std::vector<int64_t> sizes) {
  if (weight.dim() == 3) sizes.insert(sizes.begin(), weight.size(0));
  return sizes;
}

inline ArgumentChecks check_log_cpb_layers(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight) {
  const ArgumentChecks arguments("log_cpb_table", "vertical", vertical, 1, "(R)", {kFloat, kDouble});
  arguments.check("horizontal", horizontal, {-1});
  arguments.check("weight", weight, sizes_of_mlps(weight, {-1, -1}));
  const int64_t hidden = weight.size(-1);
  arguments.check("hidden_weight", hidden_weight, sizes_of_mlps(weight, {hidden, 2}));
  arguments.check("hidden_bias", hidden_bias, sizes_of_mlps(weight, {hidden}));
  return arguments;
}

inline void check_log_cpb_table(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  const ArgumentChecks arguments = check_log_cpb_layers(vertical, horizontal, hidden_weight, hidden_bias, weight);
  arguments.check("bias", bias, sizes_of_mlps(weight, {weight.size(-2)}));
}

inline void check_log_cpb_table_backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  const ArgumentChecks arguments = check_log_cpb_layers(vertical, horizontal, hidden_weight, hidden_bias, weight);
  arguments.check(
      "grad_table", grad_table, sizes_of_mlps(weight, {weight.size(-2), vertical.size(0), horizontal.size(0)}));
}

// The kernels of a device, for float32 or float64: vertical (R), horizontal (C), and of one MLP or more hidden_weight
// (hidden, 2), hidden_bias (hidden), weight (heads, hidden), bias (heads); the table is (heads, R, C).
using LogCPBForward = Tensor(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias);
using LogCPBGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using LogCPBBackward = LogCPBGradients(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight);

LogCPBForward log_cpb_table_forward_cuda;
LogCPBBackward log_cpb_table_backward_cuda;

}  // namespace bioattn_mm
