// Stands in for the header of the same name: runs a kernel with the fibers of cuda_runtime.h.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#include <optional>

namespace bioattn_mm {

constexpr size_t kSharedBytes = 48 << 10;  // what every GPU gives without asking

struct DeviceGuard {
  explicit DeviceGuard(std::optional<c10::Device>) {}
};

__attribute__((weak, aligned(16))) char shared_memory[kSharedBytes];

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes, const Arguments&... arguments) {
  TORCH_CHECK(shared_bytes <= kSharedBytes, shared_bytes, " bytes of shared memory");
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  cuda_on_cpu::run(blocks, threads, [&] { kernel(arguments...); });
}

}  // namespace bioattn_mm
