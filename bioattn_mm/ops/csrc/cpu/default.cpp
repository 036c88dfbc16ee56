// The CPU kernels for any processor of the family that is compiled for: SSE2 on x86-64, NEON on ARM.
#include "headers.h"

#define BIOATTN_ISA isa_default
#define BIOATTN_VECTOR_BYTES 16
#define BIOATTN_REGISTERS (BIOATTN_X86 ? 16 : 32)
#include "all_kernels.h"
