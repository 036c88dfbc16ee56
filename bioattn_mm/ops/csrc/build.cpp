// What this library was built for, and which instructions it uses.

#include "cpu/kernels.h"

#include <torch/library.h>

#include <algorithm>
#include <string>

namespace bioattn_mm {
namespace {

#define BIOATTN_STRING_OF(text) #text
#define BIOATTN_STRING(text) BIOATTN_STRING_OF(text)

// Compute capabilities, like "8.0 9.0+PTX"; empty without CUDA.
std::string cuda_architectures() {
#ifdef BIOATTN_WITH_CUDA
  std::string names = BIOATTN_STRING(BIOATTN_CUDA_ARCHITECTURES);
  std::replace(names.begin(), names.end(), '_', ' ');  // nvcc splits macros at commas, the shell at spaces
  return names;
#else
  return "";
#endif
}

// Allows the CPU kernels instructions of bfloat16 or not; whether they use them from now on.
bool allow_bfloat16_instructions(bool allowed) {
  bfloat16_is_allowed = allowed;
  return has_bfloat16();
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) {
  library.def("cuda_architectures() -> str", cuda_architectures);
  library.def("allow_bfloat16_instructions(bool allowed) -> bool", allow_bfloat16_instructions);
}

}  // namespace
}  // namespace bioattn_mm
