// The instruction sets that the CPU kernels are compiled for, and which of them runs.
// Each has a source file (avx2.cpp, ...), which includes all kernels in a namespace of its name; `cpu_kernels` picks
// one at run time. Only the code between BIOATTN_TARGET and BIOATTN_END_TARGET is compiled for it: a compiler flag
// would apply to inline functions of other headers, too, of which the linker keeps one copy, which must run anywhere.
#pragma once

#include "../aggregated_attention.h"
#include "../deformable_attention.h"
#include "../gated_convolution.h"
#include "../gelu_pool.h"
#include "../layer_norm.h"
#include "../log_cpb.h"
#include "../peripheral_attention.h"
#include "../sliding_window.h"
#include "../sparse_codes.h"

// Apart from x86-64, PyTorch builds for one instruction set a processor family, and so do we: see default.cpp.
#if defined(__x86_64__)
#define BIOATTN_X86 1
#else
#define BIOATTN_X86 0
#endif
// Compilers before GCC 11 do not know the instructions of tiles, and each system is asked for these in its own way.
#if BIOATTN_X86 && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#define BIOATTN_KNOWS_AMX 1
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
  AddNormForward* add_norm_forward;
  AddNormBackward* add_norm_backward;
  AttentionForward* attention_forward;
  AttentionBackward* attention_backward;
  DeformableForward* deformable_attention_forward;
  DeformableBackward* deformable_attention_backward;
  GatedConvolutionForward* gated_convolution_forward;
  GatedConvolutionBackward* gated_convolution_backward;
  GeluPoolForward* gelu_pool_forward;
  GeluPoolBackward* gelu_pool_backward;
  LogCPBForward* log_cpb_table_forward;
  LogCPBBackward* log_cpb_table_backward;
  PeripheralAttentionForward* peripheral_attention_forward;
  PeripheralAttentionBackward* peripheral_attention_backward;
  SparseCodesForward* sparse_codes_forward;
  SparseCodesBackward* sparse_codes_backward;
  WindowProducts* window_products;
  WindowSums* window_sums;
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
namespace isa_amx {
CpuKernels make_kernels();
}

// The kernels of the instruction set in use, for tensors of a dtype.
const CpuKernels& cpu_kernels(ScalarType dtype);

// A kernel of the instruction set in use, such as `cpu_kernel<&CpuKernels::window_sums>`, with contiguous arguments.
template <auto kernel, typename Kernel = decltype(kernel)>
struct OnCpu;

template <auto kernel, typename Result, typename First, typename... Types>
struct OnCpu<kernel, Result (*CpuKernels::*)(First, Types...)> {
  static Result call(First first, Types... others) {
    return (cpu_kernels(first.scalar_type()).*kernel)(dense(first), dense(others)...);
  }
};

template <auto kernel>
constexpr auto cpu_kernel = OnCpu<kernel>::call;

// The instruction set in use: default, avx2, avx512, avx512_bf16 or amx; ATEN_CPU_CAPABILITY lowers it.
std::string cpu_capability();

// The instruction sets that this processor runs, the simplest first.
std::vector<std::string> cpu_capabilities();

// Uses another instruction set from now on, for tests.
void set_cpu_capability(const std::string& name);

}  // namespace bioattn_mm
