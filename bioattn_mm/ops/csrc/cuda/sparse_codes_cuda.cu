// The threshold of a proximal gradient step on a GPU, and its gradient; a warp has a row, its lanes the channels.

#include "sparse_codes.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;

template <typename T>
__device__ __forceinline__ T length_of(const SparseCodesPointers<T>& s, int64_t row) {
  return s.codes.data ? s.lengths[row / s.states] : T(1);
}

template <typename T>
__device__ __forceinline__ T& at(const RowsOf<T>& rows, int64_t row, int channel) {
  return rows.data[row * rows.stride + channel];
}

// y with the sign of x, 0 where x is 0; NaN where one is.
template <typename T>
__device__ __forceinline__ T with_sign(T x, T y) {
  return x > 0 ? y : x < 0 ? -y : x * y;
}

__device__ __forceinline__ int64_t row_of_warp() { return int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarpSize; }

template <typename T>
__global__ void __launch_bounds__(kThreads)
    advance_kernel(SparseCodesPointers<T> s, RowsOf<const T> product, RowsOf<T> residual, RowsOf<T> next) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const T length = length_of(s, row), threshold = length * *s.penalty;
  for (int c = threadIdx.x % kWarpSize; c < s.channels; c += kWarpSize) {
    T x = at(s.target, row, c);
    if (s.codes.data) {
      x -= at(product, row, c);
      if (residual.data) at(residual, row, c) = x;
      x = at(s.codes, row, c) + length * x;
    }
    const T size = fabs(x) - threshold;
    at(next, row, c) = with_sign(x, size * cumulative(size));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    differentiate_kernel(SparseCodesPointers<T> s, SparseCodesGradients<T> g) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const T length = length_of(s, row), threshold = length * *s.penalty;
  T of_length = 0, of_penalty = 0;
  for (int c = threadIdx.x % kWarpSize; c < s.channels; c += kWarpSize) {
    const T residual = s.codes.data ? at(g.residual, row, c) : T(0);
    const T x = s.codes.data ? at(s.codes, row, c) + length * residual : at(s.target, row, c);
    const T size = fabs(x) - threshold;
    const T slope = cumulative(size) + size * T(0.39894228040143267794) * exp(T(-0.5) * size * size);
    T grad = at(g.grad, row, c);
    if (g.product.data) grad += at(g.product, row, c);
    grad = x != 0 ? grad * slope : T(0);  // the size of 0 has none
    of_length += grad * residual, of_penalty -= with_sign(x, grad);
    if (s.codes.data) {
      at(g.scaled, row, c) = -length * grad;
    } else {
      for (int step = 0; step < g.num_steps; ++step) grad -= at(g.scaled, row, step * s.channels + c);
    }
    at(g.of_sum, row, c) = grad;
  }
  of_length = warp_sum(of_length), of_penalty = warp_sum(of_penalty);
  if (threadIdx.x % kWarpSize) return;
  g.of_penalty[row] = length * of_penalty;
  g.of_length[row] = s.codes.data ? of_length + *s.penalty * of_penalty : T(0);
}

}  // namespace

void sparse_codes_forward_cuda(const SparseCodesStep& step, const Tensor& product, const Tensor& next) {
  const DeviceGuard guard(next.device());
  dispatch<float, double>(next.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const SparseCodesPointers<T> s(step);
    launch(
        advance_kernel<T>, dim3(static_cast<unsigned>(divide_up(s.rows, kWarps))), kThreads, 0, s,
        RowsOf<const T>(product), RowsOf<T>(step.residual), RowsOf<T>(next));
  });
}

void sparse_codes_backward_cuda(
    const SparseCodesStep& step, const Tensor& grad, const Tensor& product, const Tensor& of_sum,
    const Tensor& scaled, const Tensor& of_length, const Tensor& of_penalty) {
  const DeviceGuard guard(grad.device());
  dispatch<float, double>(grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const SparseCodesPointers<T> s(step);
    const SparseCodesGradients<T> gradients(step, grad, product, of_sum, scaled, of_length, of_penalty);
    launch(
        differentiate_kernel<T>, dim3(static_cast<unsigned>(divide_up(s.rows, kWarps))), kThreads, 0, s, gradients);
  });
}

}  // namespace bioattn_mm
