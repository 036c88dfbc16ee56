// All kernels, in the namespace of an instruction set.
#pragma once

#include "aggregated_attention_cpu.h"
#include "gated_convolution_cpu.h"
#include "gelu_pool_cpu.h"
#include "log_cpb_cpu.h"
#include "peripheral_attention_cpu.h"
#include "relative_bias_attention_cpu.h"
#include "sliding_window_cpu.h"

namespace bioattn_mm::BIOATTN_ISA {

CpuKernels make_kernels() {
  CpuKernels kernels{};
  kernels.attention_forward = aggregated_attention::forward;
  kernels.attention_backward = aggregated_attention::backward;
  kernels.gated_convolution_forward = gated_convolution::forward;
  kernels.gated_convolution_backward = gated_convolution::backward;
  kernels.gelu_pool_forward = gelu_pool::forward;
  kernels.gelu_pool_backward = gelu_pool::backward;
  kernels.log_cpb_table_forward = log_cpb::forward;
  kernels.log_cpb_table_backward = log_cpb::backward;
  kernels.peripheral_attention_forward = peripheral_attention::forward;
  kernels.peripheral_attention_backward = peripheral_attention::backward;
  kernels.relative_bias_attention_forward = relative_bias_attention::forward;
  kernels.relative_bias_attention_backward = relative_bias_attention::backward;
  kernels.window_products = sliding_window::products;
  kernels.window_sums = sliding_window::sums;
  return kernels;
}

}  // namespace bioattn_mm::BIOATTN_ISA
