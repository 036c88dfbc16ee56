// Operators that say what this library is, which instructions its kernels use, and change them.

#include "boxed.h"
#include "cpu/isa.h"

namespace bioattn_mm {
namespace {

// Of the package, which must be that of the Python files beside the library.
std::string version() { return BIOATTN_VERSION; }

STABLE_TORCH_LIBRARY_IMPL(bioattn_mm, CompositeExplicitAutograd, library) {
  library.impl("version", boxed<version>);
  library.impl("cpu_capability", boxed<cpu_capability>);
  library.impl("cpu_capabilities", boxed<cpu_capabilities>);
  library.impl("set_cpu_capability", boxed<set_cpu_capability>);
}

}  // namespace
}  // namespace bioattn_mm
