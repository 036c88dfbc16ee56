// The sliding window on a GPU: one thread computes one product, or some neighbouring channels of a sum.

#include "sliding_window.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {
namespace {

constexpr int kThreads = 256, kMaxGridY = 65535;

// One row of tokens for each blockIdx.x, counted through all images; the other indices give the element.
dim3 blocks_for(const WindowSizes<int>& s, int64_t last_size) {
  const int64_t blocks = divide_up(s.width * s.heads * last_size, kThreads);
  const int64_t z = std::max<int64_t>(divide_up(blocks, kMaxGridY), 1);
  return dim3(s.batch * s.height, divide_up(blocks, z), z);
}

__device__ __forceinline__ int element_of_row() {
  return (blockIdx.z * gridDim.y + blockIdx.y) * kThreads + threadIdx.x;
}

template <int kCount, typename T>
__global__ void __launch_bounds__(kThreads)
    products_kernel(const T* tokens, const T* others, const T* bias, T* products, WindowSizes<int> s, T outside) {
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
  using Channels = Chunk<T, kCount>;
  const auto* token = reinterpret_cast<const Channels*>(tokens + ((row * s.width + j) * s.heads + head) * s.channels);
  const auto* other =
      reinterpret_cast<const Channels*>(others + (((row + dy) * s.width + x) * s.heads + head) * s.channels);
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Sum sum = bias ? static_cast<Sum>(bias[head * s.offsets + offset]) : Sum(0);
  for (int i = 0; i < s.channels / kCount; ++i) {
    const Channels a = token[i], b = other[i];
#pragma unroll
    for (int c = 0; c < kCount; ++c) sum += static_cast<Sum>(a.elements[c]) * static_cast<Sum>(b.elements[c]);
  }
  *target = static_cast<T>(sum);
}

template <int kCount, typename T>
__global__ void __launch_bounds__(kThreads, 4)
    sums_kernel(const T* weights, const T* tokens, T* sums, WindowSizes<int> s, bool transposed) {
  const int vectors = s.channels / kCount, element = element_of_row();
  if (element >= s.width * s.heads * vectors) return;
  const int64_t row = blockIdx.x;
  const int first = element % vectors * kCount, head = element / vectors % s.heads, j = element / vectors / s.heads;
  const int i = static_cast<int>(blockIdx.x) % s.height, margin = s.window / 2;
  const int64_t token = (row * s.width + j) * s.heads + head;
  using Channels = Chunk<T, kCount>;
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Sum sum[kCount] = {};
  for (int dy = 0; dy < s.window; ++dy) {
    if (i + dy < margin || i + dy >= margin + s.height) continue;
#pragma unroll 1  // several rounds at once would not fit the registers
    for (int dx = 0; dx < s.window; ++dx) {
      if (j + dx < margin || j + dx >= margin + s.width) continue;
      const int offset = dy * s.window + dx;
      const int64_t other = ((row + dy - margin) * s.width + j + dx - margin) * s.heads + head;
      // In the window of the other token, this one has the opposite offset.
      const int64_t place = transposed ? other * s.offsets + s.offsets - 1 - offset : token * s.offsets + offset;
      const Sum weight = static_cast<Sum>(weights[place]);
      const Channels channels = *reinterpret_cast<const Channels*>(tokens + other * s.channels + first);
#pragma unroll
      for (int c = 0; c < kCount; ++c) sum[c] += weight * static_cast<Sum>(channels.elements[c]);
    }
  }
  Channels result;
#pragma unroll
  for (int c = 0; c < kCount; ++c) result.elements[c] = static_cast<T>(sum[c]);
  *reinterpret_cast<Channels*>(sums + token * s.channels + first) = result;
}

// Calls function(integral_constant kCount) with the channels to load at once: sixteen bytes if aligned, or one.
template <typename T, typename Function>
void for_vectors(int64_t channels, std::initializer_list<Tensor> tensors, const Function& function) {
  constexpr int kCount = 16 / sizeof(T);
  bool aligned = channels % kCount == 0;
  for (const Tensor& tensor : tensors)
    aligned = aligned && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  if (aligned) return function(std::integral_constant<int, kCount>());
  function(std::integral_constant<int, 1>());
}

}  // namespace

Tensor window_products_cuda(
    const Tensor& tokens, const Tensor& others, const Tensor& bias, int64_t offsets, double outside) {
  const DeviceGuard guard(tokens.device());
  const WindowSizes<int> s(tokens, offsets);
  Tensor products = empty({s.batch, s.height, s.width, s.heads, s.offsets}, tokens.options());
  dispatch<float, double, c10::Half, c10::BFloat16>(tokens.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    for_vectors<scalar_t>(s.channels, {tokens, others}, [&](auto count) {
      launch(
          products_kernel<decltype(count)::value, scalar_t>, blocks_for(s, s.offsets), kThreads, 0, tokens, others,
          bias, products, s, static_cast<scalar_t>(outside));
    });
  });
  return products;
}

Tensor window_sums_cuda(const Tensor& weights, const Tensor& tokens, bool transposed) {
  const DeviceGuard guard(tokens.device());
  const WindowSizes<int> s(tokens, weights.size(4));
  Tensor sums = empty(tokens.sizes(), tokens.options());
  dispatch<float, double, c10::Half, c10::BFloat16>(tokens.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    for_vectors<scalar_t>(s.channels, {tokens, sums}, [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      launch(
          sums_kernel<kCount, scalar_t>, blocks_for(s, s.channels / kCount), kThreads, 0, weights, tokens, sums, s,
          transposed);
    });
  });
  return sums;
}

}  // namespace bioattn_mm
