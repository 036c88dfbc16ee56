// Multi-scale deformable attention on a GPU: a warp has the head of a query, its lanes the channels.

#include "deformable_attention.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;

// The output of this warp, counted on past the last one.
template <typename T>
__device__ __forceinline__ int64_t output_of_warp(const Sampling<T>& s) {
  BIOATTN_KERNEL_ASSERT(
      s.fits(), "deformable_attention: the levels of shapes must have the tokens of value together");
  return int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sample_kernel(Sampling<T> s, int64_t outputs, T* output) {
  using Full = typename Sampling<T>::Full;
  const int64_t index = output_of_warp(s), stride = s.heads * s.channels;
  if (index >= outputs) return;
  const T* const value = s.value + s.start(index);
  for (int64_t c = threadIdx.x % kWarpSize; c < s.channels; c += kWarpSize) {
    Full sum = 0;
    s.for_points(index, [&](int64_t k, const SamplingPoint<Full>& point) {
      const Full weight = s.weights[k];
      point.for_corners([&](int corner, int64_t token) {
        sum += weight * point.share(corner) * static_cast<Full>(value[token * stride + c]);
      });
    });
    output[index * s.channels + c] = static_cast<T>(sum);
  }
}

// Warps add to the gradients of the same values, in any order.
template <typename T, typename Full>
__global__ void __launch_bounds__(kThreads) differentiate_kernel(
    Sampling<T> s, int64_t outputs, const T* grad_output, Full* grad_value, Full* grad_locations,
    Full* grad_weights) {
  const int64_t index = output_of_warp(s), stride = s.heads * s.channels;
  if (index >= outputs) return;
  const T *const value = s.value + s.start(index), *const grad = grad_output + index * s.channels;
  Full* const sums = grad_value + s.start(index);
  const int lane = threadIdx.x % kWarpSize;
  s.for_points(index, [&](int64_t k, const SamplingPoint<Full>& point) {
    const Full weight = s.weights[k];
    Full products[4] = {};  // of the lane's channels
    point.for_corners([&](int corner, int64_t token) {
      const Full factor = weight * point.share(corner);
      for (int64_t c = lane; c < s.channels; c += kWarpSize) {
        const Full of_output = static_cast<Full>(grad[c]);
        products[corner] += of_output * static_cast<Full>(value[token * stride + c]);
        atomicAdd(sums + token * stride + c, of_output * factor);
      }
    });
    const PointGradients<Full> part = point.gradients(products, weight);
    const Full of_weight = warp_sum(part.weight), of_x = warp_sum(part.x), of_y = warp_sum(part.y);
    if (lane > 0) return;
    grad_weights[k] = of_weight;
    grad_locations[2 * k] = of_x, grad_locations[2 * k + 1] = of_y;
  });
}

dim3 blocks_of(int64_t outputs) { return dim3(static_cast<unsigned>(divide_up(outputs, kWarps))); }

}  // namespace

Tensor deformable_attention_forward_cuda(
    const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights) {
  const Tensor output = empty({value.size(0), weights.size(1), value.size(2), value.size(3)}, value.options());
  const int64_t outputs = output.size(0) * output.size(1) * output.size(2);
  dispatch<float, double, c10::Half, c10::BFloat16>(value.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Sampling<T> s(value, shapes, locations, weights);
    launch(sample_kernel<T>, blocks_of(outputs), kThreads, 0, s, outputs, output);
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> deformable_attention_backward_cuda(
    const Tensor& grad_output, const Tensor& value, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights) {
  const Options full = value.options().dtype(full_precision(value.scalar_type()));
  const Tensor grad_value = zeros(value.sizes(), full), grad_locations = empty_like(locations),
               grad_weights = empty_like(weights);
  const int64_t outputs = grad_output.size(0) * grad_output.size(1) * grad_output.size(2);
  dispatch<float, double, c10::Half, c10::BFloat16>(value.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Sampling<T> s(value, shapes, locations, weights);
    launch(
        differentiate_kernel<T, typename Sampling<T>::Full>, blocks_of(outputs), kThreads, 0, s, outputs, grad_output,
        grad_value, grad_locations, grad_weights);
  });
  return {grad_value.to(value.scalar_type()), grad_locations, grad_weights};
}

}  // namespace bioattn_mm
