// Stands in for the header of the same name: runs a kernel with the fibers of fibers.h.
#pragma once

#include "memory.h"

#include <c10/util/Exception.h>
#include <cuda_runtime.h>
#include <tensor.h>

namespace bioattn_mm {

#define BIOATTN_KERNEL_ASSERT(condition, message) \
  if (!(condition)) cuda_on_cpu::fail(message)

struct DeviceGuard {
  explicit DeviceGuard(const Device&) {}
};

template <typename... Parameters, typename... Arguments>
void launch(
    void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes, const Arguments&... arguments) {
  TORCH_CHECK(shared_bytes <= cuda_on_cpu::kSharedBytes, shared_bytes, " bytes of shared memory");
  TORCH_CHECK(blocks.y < 1 << 16 && blocks.z < 1 << 16, "too many blocks: ", blocks.y, " and ", blocks.z);
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  cuda_on_cpu::set_shared_bytes(shared_bytes);
  cuda_on_cpu::run(blocks.x, blocks.y, blocks.z, threads, [&] { kernel(kernel_argument<Parameters>(arguments)...); });
}

}  // namespace bioattn_mm
