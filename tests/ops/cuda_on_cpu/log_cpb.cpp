// The CUDA kernels of the table of the position bias as operators on CPU tensors.

#include "log_cpb.h"

#include "control.h"

using cuda_on_cpu::Guarded;

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("log_cpb_table", Guarded<&bioattn_mm::log_cpb_table_forward_cuda>::call);
  library.def("log_cpb_table_backward", Guarded<&bioattn_mm::log_cpb_table_backward_cuda>::call);
}
