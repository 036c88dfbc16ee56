// The instruction sets that the CPU kernels are compiled for, and which of them runs.
//
// Each instruction set has a source file of its own (default.cpp, avx2.cpp, ...), which includes all kernels in a
// namespace of its name, with vectors as wide as its registers. A binary holds all of them, and `cpu_kernels` picks
// one set when an operator is called. Only the code between BIOATTN_TARGET and BIOATTN_END_TARGET is compiled for the
// instruction set. A compiler flag for the whole file would apply to inline functions of other headers, too, of which
// the linker keeps one copy for all files: that copy must run on any processor.
#pragma once

#include "../aggregated_attention.h"
#include "../gated_convolution.h"
#include "../gelu_pool.h"
#include "../log_cpb.h"
#include "../peripheral_attention.h"
#include "../relative_bias_attention.h"
#include "../sliding_window.h"

#include <string>
#include <vector>

// Apart from x86-64, PyTorch builds for one instruction set a processor family, and so do we: see default.cpp.
#if defined(__x86_64__)
#define BIOATTN_X86 1
#else
#define BIOATTN_X86 0
#endif

#define BIOATTN_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BIOATTN_TARGET(features) \
  BIOATTN_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define BIOATTN_END_TARGET BIOATTN_PRAGMA(clang attribute pop)
#else
#define BIOATTN_TARGET(features) BIOATTN_PRAGMA(GCC push_options) BIOATTN_PRAGMA(GCC target(features))
#define BIOATTN_END_TARGET BIOATTN_PRAGMA(GCC pop_options)
#endif

namespace bioattn_mm {

// The kernels of one instruction set, for tensors of one dtype.
struct CpuKernels {
  AttentionForward* attention_forward;
  AttentionBackward* attention_backward;
  GatedConvolutionForward* gated_convolution_forward;
  GatedConvolutionBackward* gated_convolution_backward;
  GeluPoolForward* gelu_pool_forward;
  GeluPoolBackward* gelu_pool_backward;
  LogCPBForward* log_cpb_table_forward;
  LogCPBBackward* log_cpb_table_backward;
  PeripheralAttentionForward* peripheral_attention_forward;
  PeripheralAttentionBackward* peripheral_attention_backward;
  RelativeBiasAttentionForward* relative_bias_attention_forward;
  RelativeBiasAttentionBackward* relative_bias_attention_backward;
  WindowProducts* window_products;
  WindowSums* window_sums;
  bool has_bfloat16_instructions;
};

namespace isa_default {
CpuKernels make_kernels();
}
namespace isa_avx2 {
CpuKernels make_kernels();
}
namespace isa_avx512 {
CpuKernels make_kernels();
}
namespace isa_avx512_bf16 {
CpuKernels make_kernels();
}

// The kernels of the instruction set in use, for tensors of a dtype.
const CpuKernels& cpu_kernels(ScalarType dtype);

// Whether the instruction set in use has instructions for bfloat16.
inline bool has_bfloat16_instructions() { return cpu_kernels(kBFloat16).has_bfloat16_instructions; }

// The name of the instruction set in use: default, avx2, avx512, or avx512_bf16, which is avx512 with instructions
// for bfloat16. At first it is that of PyTorch's own operators, which the environment variable ATEN_CPU_CAPABILITY
// lowers.
std::string cpu_capability();

// The instruction sets that this processor runs, the simplest first.
std::vector<std::string> cpu_capabilities();

// Uses another instruction set from now on, for tests.
void set_cpu_capability(const std::string& name);

}  // namespace bioattn_mm
