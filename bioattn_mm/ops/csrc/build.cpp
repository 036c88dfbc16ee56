// What this library was built for.

#include <torch/library.h>

#include <algorithm>
#include <string>

namespace bioattn_mm {
namespace {

#define BIOATTN_STRING_OF(...) #__VA_ARGS__
#define BIOATTN_STRING(...) BIOATTN_STRING_OF(__VA_ARGS__)

// Compute capabilities, like "8.0 9.0+PTX"; empty without CUDA.
std::string cuda_architectures() {
#ifdef BIOATTN_WITH_CUDA
  std::string names = BIOATTN_STRING(BIOATTN_CUDA_ARCHITECTURES);
  std::replace(names.begin(), names.end(), ',', ' ');
  return names;
#else
  return "";
#endif
}

TORCH_LIBRARY_FRAGMENT(bioattn_mm, library) { library.def("cuda_architectures() -> str", cuda_architectures); }

}  // namespace
}  // namespace bioattn_mm
