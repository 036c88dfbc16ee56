// All kernels, in the namespace of an instruction set.
#pragma once

#include "add_norm_cpu.h"
#include "aggregated_attention_cpu.h"
#include "deformable_attention_cpu.h"
#include "gated_convolution_cpu.h"
#include "gelu_pool_cpu.h"
#include "log_cpb_cpu.h"
#include "peripheral_attention_cpu.h"
#include "sliding_window_cpu.h"
#include "sparse_codes_cpu.h"

namespace bioattn_mm::BIOATTN_ISA {

CpuKernels make_kernels() {
  return {
      add_norm::forward,
      add_norm::backward,
      aggregated_attention::forward,
      aggregated_attention::backward,
      deformable_attention::forward,
      deformable_attention::backward,
      gated_convolution::forward,
      gated_convolution::backward,
      gelu_pool::forward,
      gelu_pool::backward,
      log_cpb::forward,
      log_cpb::backward,
      peripheral_attention::forward,
      peripheral_attention::backward,
      sparse_codes::forward,
      sparse_codes::backward,
      sliding_window::products,
      sliding_window::sums};
}

}  // namespace bioattn_mm::BIOATTN_ISA
