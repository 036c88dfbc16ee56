// What this library was built for.

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

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) { library.def("cuda_architectures() -> str", cuda_architectures); }

}  // namespace
}  // namespace bioattn_mm
