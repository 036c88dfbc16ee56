// The memory of the kernels: shared memory whose every access is checked, and tensors between pages that nobody may
// touch, filled with NaN. Kernels are compiled with -fsanitize=thread,alignment, which calls functions of memory.cpp
// before every access and at every one that is not aligned; the libraries of these sanitizers are not linked.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace bioattn_mm {
extern char shared_memory[];
}

namespace cuda_on_cpu {

constexpr size_t kSharedBytes = 48 << 10;  // what every GPU gives without asking

// Shared memory of the kernel to run; accesses beyond are a fault.
void set_shared_bytes(size_t bytes);

// NaN in every dtype, and forgets who wrote and read.
void poison_shared_memory();

// Address of shared memory as PTX instructions take it.
uint32_t shared_address(const void* pointer);

// Reads `size` bytes, at an address that must be a multiple of `size`.
void read_shared(void* target, uint32_t address, size_t size);

// Copies `from_source` bytes to shared memory, and zeros up to `size`, when the thread calls `finish_copies`. Until
// then nobody may read or write them.
void copy_later(uint32_t address, const void* source, size_t size, size_t from_source);
void finish_copies();

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
