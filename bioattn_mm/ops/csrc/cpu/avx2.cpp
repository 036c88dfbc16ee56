// The CPU kernels for processors with AVX2.
#include "headers.h"

#if BIOATTN_X86
#define BIOATTN_ISA isa_avx2
#define BIOATTN_VECTOR_BYTES 32
#define BIOATTN_REGISTERS 16
BIOATTN_TARGET("avx2,fma,f16c,bmi,bmi2,lzcnt")
#include "all_kernels.h"
BIOATTN_END_TARGET
#endif
