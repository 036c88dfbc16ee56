// The memory of the kernels: shared memory whose every access is checked, and tensors between pages that nobody may
// touch, filled with NaN. Kernels are compiled with -fsanitize=thread,alignment, which calls functions of memory.cpp
// before every access and at every one that is not aligned; the libraries of these sanitizers are not linked.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace bioattn_mm {
extern char shared_memory[];
}

namespace cuda_on_cpu {

constexpr size_t kSharedBytes = 48 << 10;  // what every GPU gives without asking

// Shared memory of the kernel to run; accesses beyond are a fault.
void set_shared_bytes(size_t bytes);

// NaN in every dtype, and forgets who wrote and read.
void poison_shared_memory();

// While it lives, a segmentation fault ends the kernel instead of the process.
class SegmentationFaults {
 public:
  SegmentationFaults();
  ~SegmentationFaults();
};

// While it lives, PyTorch's tensors on the CPU lie between guard pages: they touch the one behind them or, as asked
// for, the one before them, and begin as NaN.
class GuardPages {
 public:
  explicit GuardPages(bool at_the_end);
  ~GuardPages();

 private:
  c10::Allocator* previous_;
};

}  // namespace cuda_on_cpu
