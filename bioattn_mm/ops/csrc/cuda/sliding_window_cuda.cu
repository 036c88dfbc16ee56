// The sliding window on a GPU: one thread computes one element of the output.

#include "sliding_window.h"

#include "cuda/launch.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>

namespace bioattn_mm {
namespace {

using at::Tensor;

constexpr int kThreads = 256;

// One row of tokens for each blockIdx.x, counted through all images; blockIdx.y and threadIdx.x give the element.
dim3 blocks_for(const WindowSizes<int>& s, int64_t last_size) {
  const int64_t elements = s.width * s.heads * last_size;
  return dim3(s.batch * s.height, (elements + kThreads - 1) / kThreads);
}

__device__ __forceinline__ int element_of_row() { return blockIdx.y * kThreads + threadIdx.x; }

template <typename T>
__global__ void __launch_bounds__(kThreads) products_kernel(
    const T* tokens, const T* others, const T* bias, T* products, WindowSizes<int> s, T outside) {
  const int element = element_of_row();
  if (element >= s.width * s.heads * s.offsets) return;
  const int64_t row = blockIdx.x;
  const int offset = element % s.offsets, head = element / s.offsets % s.heads, j = element / s.offsets / s.heads;
  const int dy = offset / s.window - s.window / 2, dx = offset % s.window - s.window / 2;
  const int y = static_cast<int>(blockIdx.x) % s.height + dy, x = j + dx;
  T* target = products + row * s.width * s.heads * s.offsets + element;
  if (y < 0 || y >= s.height || x < 0 || x >= s.width) {
    *target = outside;
    return;
  }
  const T* token = tokens + ((row * s.width + j) * s.heads + head) * s.channels;
  const T* other = others + (((row + dy) * s.width + x) * s.heads + head) * s.channels;
  using Sum = at::opmath_type<T>;
  Sum sum = bias ? static_cast<Sum>(bias[head * s.offsets + offset]) : Sum(0);
  for (int c = 0; c < s.channels; ++c) sum += static_cast<Sum>(token[c]) * static_cast<Sum>(other[c]);
  *target = static_cast<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sums_kernel(
    const T* weights, const T* tokens, T* sums, WindowSizes<int> s, bool transposed) {
  const int element = element_of_row();
  if (element >= s.width * s.heads * s.channels) return;
  const int64_t row = blockIdx.x;
  const int channel = element % s.channels, head = element / s.channels % s.heads, j = element / s.channels / s.heads;
  const int i = static_cast<int>(blockIdx.x) % s.height;
  const int64_t token = (row * s.width + j) * s.heads + head;
  using Sum = at::opmath_type<T>;
  Sum sum = 0;
  for (int offset = 0; offset < s.offsets; ++offset) {
    const int dy = offset / s.window - s.window / 2, dx = offset % s.window - s.window / 2;
    if (i + dy < 0 || i + dy >= s.height || j + dx < 0 || j + dx >= s.width) continue;
    const int64_t other = ((row + dy) * s.width + j + dx) * s.heads + head;
    // In the window of the other token, this one has the opposite offset.
    const int64_t weight = transposed ? other * s.offsets + s.offsets - 1 - offset : token * s.offsets + offset;
    sum += static_cast<Sum>(weights[weight]) * static_cast<Sum>(tokens[other * s.channels + channel]);
  }
  sums[token * s.channels + channel] = static_cast<T>(sum);
}

}  // namespace

Tensor window_products_cuda(
    const Tensor& tokens, const Tensor& others, const Tensor& bias, int64_t offsets, double outside) {
  const DeviceGuard guard(tokens.device());
  const WindowSizes<int> s(tokens, offsets);
  Tensor products = at::empty({s.batch, s.height, s.width, s.heads, s.offsets}, tokens.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, tokens.scalar_type(), "sliding_window", [&] {
    const scalar_t* bias_data = bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr;
    launch(
        products_kernel<scalar_t>, blocks_for(s, s.offsets), kThreads, 0, tokens.const_data_ptr<scalar_t>(),
        others.const_data_ptr<scalar_t>(), bias_data, products.mutable_data_ptr<scalar_t>(), s,
        static_cast<scalar_t>(outside));
  });
  return products;
}

Tensor window_sums_cuda(const Tensor& weights, const Tensor& tokens, bool transposed) {
  const DeviceGuard guard(tokens.device());
  const WindowSizes<int> s(tokens, weights.size(4));
  Tensor sums = at::empty(tokens.sizes(), tokens.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, tokens.scalar_type(), "sliding_window", [&] {
    launch(
        sums_kernel<scalar_t>, blocks_for(s, s.channels), kThreads, 0, weights.const_data_ptr<scalar_t>(),
        tokens.const_data_ptr<scalar_t>(), sums.mutable_data_ptr<scalar_t>(), s, transposed);
  });
  return sums;
}

}  // namespace bioattn_mm
