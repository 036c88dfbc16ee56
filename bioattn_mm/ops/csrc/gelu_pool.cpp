// The operator gelu_pool on the CPU.

#include "gelu_pool.h"

#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_gelu_pool {

// The fewest channels that fill a vector of the widest kernel, which has 64 bytes.
int64_t least_channels(const Tensor& x) { return x.scalar_type() == kDouble ? 8 : 16; }

ArgumentChecks check_tokens(const Tensor& x) {
  const ArgumentChecks arguments("gelu_pool", "x", x, 4, "(B, H, W, C)", {kBFloat16, kFloat, kDouble});
  check_value(
      x.size(3) >= least_channels(x) && x.size(1) >= 1 && x.size(2) >= 1, "gelu_pool: x must have ",
      least_channels(x), " channels or more, and tokens, got ", text_of_sizes(x.sizes()));
  return arguments;
}

void check_forward(const Tensor& x, int64_t height, int64_t width) {
  check_tokens(x);
  check_value(height >= 1 && width >= 1, "gelu_pool: the grid must be 1 x 1 or larger, got ", height, " x ", width);
}

void check_backward(const Tensor& grad_output, const Tensor& x) {
  const ArgumentChecks arguments = check_tokens(x);
  arguments.check("grad_output", grad_output, {x.size(0), -1, -1, x.size(3)});
  check_forward(x, grad_output.size(1), grad_output.size(2));
}

Tensor forward(const Tensor& x, int64_t height, int64_t width) {
  return cpu_kernels(x.scalar_type()).gelu_pool_forward(x.contiguous(), height, width);
}

Tensor backward(const Tensor& grad_output, const Tensor& x) {
  return cpu_kernels(x.scalar_type()).gelu_pool_backward(grad_output.contiguous(), x.contiguous());
}

}  // namespace of_gelu_pool
}  // namespace
}  // namespace bioattn_mm
