// The operators of the sliding window on the CPU.

#include "sliding_window.h"

#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_sliding_window {

Tensor products(const Tensor& tokens, const Tensor& others, const Tensor& bias, int64_t offsets, double outside) {
  return cpu_kernels(tokens.scalar_type()).window_products(tokens, others, bias, offsets, outside);
}

Tensor sums(const Tensor& weights, const Tensor& tokens, bool transposed) {
  return cpu_kernels(tokens.scalar_type()).window_sums(weights, tokens, transposed);
}

}  // namespace of_sliding_window
}  // namespace
}  // namespace bioattn_mm
