// Launching a kernel on PyTorch's current stream.
#pragma once

#include "../tensor.h"

#include <cuda_runtime.h>

namespace bioattn_mm {

// Ends the kernel, and every later use of the device, with an error that PyTorch reports at the next synchronisation.
#define BIOATTN_KERNEL_ASSERT(condition, message) CUDA_KERNEL_ASSERT_MSG(condition, message)

inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(text_of("bioattn_mm: CUDA error: ", cudaGetErrorString(error)));
}

// Makes the device of a tensor the current one while it lives, for PyTorch and for the CUDA runtime of this library.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device) : guard_(device.index()) { check_cuda(cudaSetDevice(device.index())); }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
};

#ifdef __CUDACC__  // only nvcc reads the syntax of a launch
// Launches a kernel; tensors among the arguments become pointers to their data.
template <typename... Parameters, typename... Arguments>
void launch(
    void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes, const Arguments&... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  void* stream;
  const auto device = torch::stable::accelerator::getCurrentDeviceIndex();
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  kernel<<<blocks, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(
      kernel_argument<Parameters>(arguments)...);
  check_cuda(cudaGetLastError());
}
#endif

}  // namespace bioattn_mm
