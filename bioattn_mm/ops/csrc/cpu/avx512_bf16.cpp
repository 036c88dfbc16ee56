// The CPU kernels for bfloat16 on processors with AVX512-BF16.
#include "headers.h"

#if BIOATTN_X86
#define BIOATTN_ISA isa_avx512_bf16
#define BIOATTN_VECTOR_BYTES 64
#define BIOATTN_REGISTERS 32
#define BIOATTN_BFLOAT16 1
BIOATTN_TARGET("avx512bf16,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt")
#include "add_norm_cpu.h"
#include "aggregated_attention_cpu.h"
#include "gated_convolution_cpu.h"
#include "gelu_pool_cpu.h"

namespace bioattn_mm::BIOATTN_ISA {

// The kernels for bfloat16, and those of AVX-512 where there is none.
CpuKernels make_kernels() {
  CpuKernels kernels = isa_avx512::make_kernels();
  kernels.add_norm_forward = add_norm::forward;
  kernels.add_norm_backward = add_norm::backward;
  kernels.attention_forward = aggregated_attention::forward;
  kernels.attention_backward = aggregated_attention::backward;
  kernels.gated_convolution_forward = gated_convolution::forward;
  kernels.gated_convolution_backward = gated_convolution::backward;
  kernels.gelu_pool_forward = gelu_pool::forward;
  kernels.gelu_pool_backward = gelu_pool::backward;
  return kernels;
}

}  // namespace bioattn_mm::BIOATTN_ISA
BIOATTN_END_TARGET
#endif
