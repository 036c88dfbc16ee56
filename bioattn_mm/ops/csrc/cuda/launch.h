// Launching a kernel on PyTorch's current stream.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/macros/Macros.h>

#include <cuda_runtime.h>

namespace bioattn_mm {

// Ends the kernel, and every later use of the device, with an error that PyTorch reports at the next synchronisation.
#define BIOATTN_KERNEL_ASSERT(condition, message) CUDA_KERNEL_ASSERT_MSG(condition, message)

// Makes the device of a tensor the current one while it lives.
using DeviceGuard = c10::cuda::OptionalCUDAGuard;

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes, const Arguments&... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  kernel<<<blocks, threads, shared_bytes, c10::cuda::getCurrentCUDAStream()>>>(arguments...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace bioattn_mm
