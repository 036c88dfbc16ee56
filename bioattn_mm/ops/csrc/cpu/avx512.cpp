// The CPU kernels for processors with AVX-512.
#include "headers.h"

#if BIOATTN_X86
#define BIOATTN_ISA isa_avx512
#define BIOATTN_VECTOR_BYTES 64
#define BIOATTN_REGISTERS 32
BIOATTN_TARGET("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt")
#include "all_kernels.h"
BIOATTN_END_TARGET
#endif
