// Attention in bfloat16 on processors with the tile registers of AMX.
#include "headers.h"

#if BIOATTN_KNOWS_AMX
#define BIOATTN_ISA isa_amx
#define BIOATTN_VECTOR_BYTES 64
#define BIOATTN_REGISTERS 32
#define BIOATTN_BFLOAT16 1
#define BIOATTN_AMX 1
BIOATTN_TARGET(
    "amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt")
#include "tiles.h"

#include "aggregated_attention_cpu.h"

namespace bioattn_mm::BIOATTN_ISA {

// The kernels that tiles compute, and those of AVX512-BF16 for the others.
CpuKernels make_kernels() {
  CpuKernels kernels = isa_avx512_bf16::make_kernels();
  kernels.attention_forward = aggregated_attention::forward;
  kernels.attention_backward = aggregated_attention::backward;
  return kernels;
}

}  // namespace bioattn_mm::BIOATTN_ISA
BIOATTN_END_TARGET
#endif
