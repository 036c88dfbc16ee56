// Residual, stochastic depth and LayerNorm on a GPU, in one pass over the tokens.
//
// The forward pass is one kernel launch, the backward pass two. A warp has a token, and a lane every 32nd pair of its
// channels. The gradients of the parameters are sums over all tokens, in one order, so that results repeat to the last
// bit: each block adds up what its tokens give, and `sums_kernel` adds up the blocks.

#include "add_norm.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace bioattn_mm {
namespace {

constexpr int kMaxWarps = 8;
constexpr int kChannelsOfWarp = 2 * kWarpSize;  // that its lanes have at once
// The lines of the sums over the tokens, for the gradients of three parameters.
enum { kOfWeight, kOfBias, kOfBranchBias, kSums };
constexpr int kSharedBytes = 48 << 10;  // what every GPU gives a block without being asked
constexpr int kMaxChannels = kSharedBytes / sizeof(float) / kSums;

// The number of blocks whose sums are added up at the end, at most: eight on each multiprocessor of an H100. It is the
// same on every GPU. Tests have fewer tokens, and define fewer blocks.
#ifdef BIOATTN_SUM_BLOCKS
constexpr int kSumBlocks = BIOATTN_SUM_BLOCKS;
#else
constexpr int kSumBlocks = 1056;
#endif

struct Sizes {
  // Blocks have as many warps as fit into shared memory with some lines of channels each.
  Sizes(const Tensor& x, int lines)
      : tokens(x.size(0) * x.size(1) * x.size(2)),
        tokens_of_image(static_cast<int>(x.size(1) * x.size(2))),
        channels(static_cast<int>(x.size(3))),
        warps(kMaxWarps) {
    while (warps > 1 && bytes(lines) > kSharedBytes) warps /= 2;
    check_value(
        channels % 2 == 0 && channels <= kMaxChannels, "add_norm on CUDA takes an even number of channels up to ",
        int64_t(kMaxChannels), ", got ", int64_t(channels));
  }

  int bytes(int lines) const { return warps * lines * channels * static_cast<int>(sizeof(float)); }

  int64_t tokens;
  int tokens_of_image, channels, warps;
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int difference = kWarpSize / 2; difference > 0; difference /= 2)
    x += __shfl_xor_sync(kFullWarp, x, difference);
  return x;
}

template <typename T>
__device__ __forceinline__ void store_pair(T* address, const Pair<T>& pair) {
  *reinterpret_cast<Pair<T>*>(address) = pair;
}

// The factor of a token's branch; without factors, 1.
__device__ __forceinline__ float factor_of(const float* factors, int64_t token, const Sizes& s) {
  return factors ? factors[token / s.tokens_of_image] : 1.0f;
}

// `branch_bias` and `factors` may be null. A warp keeps the sum in shared memory, where each lane reads what it wrote.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) forward_kernel(
    const T* __restrict__ x, const T* __restrict__ branch, const T* branch_bias, const float* factors,
    const T* weight, const T* bias, float eps, T* __restrict__ sum, T* __restrict__ output, float* mean, float* rstd,
    Sizes s) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int64_t token = int64_t(blockIdx.x) * s.warps + warp, start = token * s.channels;
  if (token >= s.tokens) return;
  float* const row = reinterpret_cast<float*>(block_memory()) + warp * s.channels;
  const float factor = factor_of(factors, token, s);
  float total = 0;
#pragma unroll 4
  for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp) {
    const Pair<T> old = load_pair(x + start + c), added = load_pair(branch + start + c);
    const Pair<T> shift = branch_bias ? load_pair(branch_bias + c) : Pair<T>{T(0), T(0)};
    const Pair<T> result = make_pair<T>(
        float(old.x) + factor * (float(added.x) + float(shift.x)),
        float(old.y) + factor * (float(added.y) + float(shift.y)));
    store_pair(sum + start + c, result);
    // The norm is that of the sum as it is stored, from which the backward pass computes it again.
    row[c] = float(result.x), row[c + 1] = float(result.y);
    total += row[c] + row[c + 1];
  }
  const float average = warp_sum(total) / s.channels;
  float squares = 0;
  for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp) {
    const float first = row[c] - average, second = row[c + 1] - average;
    squares += first * first + second * second;
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / s.channels + eps);
  for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp) {
    const Pair<T> w = load_pair(weight + c), b = load_pair(bias + c);
    const float first = (row[c] - average) * scale, second = (row[c + 1] - average) * scale;
    store_pair(
        output + start + c,
        make_pair<T>(first * float(w.x) + float(b.x), second * float(w.y) + float(b.y)));
  }
  if (lane == 0) mean[token] = average, rstd[token] = scale;
}

// Writes the gradients of x and of the branch and, for each block, the sums for those of the parameters: (blocks,
// kSums, C). `grad_sum` and `factors` may be null.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) backward_kernel(
    const T* __restrict__ grad_output, const T* __restrict__ grad_sum, const T* __restrict__ sum, const float* mean,
    const float* rstd, const float* factors, const T* weight, T* __restrict__ grad_x, T* __restrict__ grad_branch,
    float* __restrict__ parts, int tokens_of_warp, Sizes s) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  float* const shared = reinterpret_cast<float*>(block_memory());
  float* const sums = shared + warp * kSums * s.channels;
  for (int line = 0; line < kSums; ++line)
    for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp)
      sums[line * s.channels + c] = 0, sums[line * s.channels + c + 1] = 0;

  const int64_t first = (int64_t(blockIdx.x) * s.warps + warp) * tokens_of_warp;
  for (int64_t token = first; token < first + tokens_of_warp && token < s.tokens; ++token) {
    const int64_t start = token * s.channels;
    const float average = mean[token], scale = rstd[token], factor = factor_of(factors, token, s);
    float of_output = 0, along = 0;
#pragma unroll 4
    for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp) {
      const Pair<T> grad = load_pair(grad_output + start + c), x = load_pair(sum + start + c);
      const Pair<T> w = load_pair(weight + c);
      const float g[2] = {float(grad.x) * float(w.x), float(grad.y) * float(w.y)};
      of_output += g[0] + g[1];
      along += g[0] * ((float(x.x) - average) * scale) + g[1] * ((float(x.y) - average) * scale);
    }
    of_output = warp_sum(of_output) / s.channels, along = warp_sum(along) / s.channels;
#pragma unroll 2
    for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp) {
      const Pair<T> grad = load_pair(grad_output + start + c), x = load_pair(sum + start + c);
      const Pair<T> w = load_pair(weight + c);
      const Pair<T> skipped = grad_sum ? load_pair(grad_sum + start + c) : Pair<T>{T(0), T(0)};
      const float g[2] = {float(grad.x), float(grad.y)}, weights[2] = {float(w.x), float(w.y)};
      const float unit[2] = {(float(x.x) - average) * scale, (float(x.y) - average) * scale};
      const float others[2] = {float(skipped.x), float(skipped.y)};
      float of_x[2], of_branch[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        of_x[k] = scale * (g[k] * weights[k] - of_output - unit[k] * along) + others[k];
        of_branch[k] = factor * of_x[k];
        sums[kOfWeight * s.channels + c + k] += g[k] * unit[k];
        sums[kOfBias * s.channels + c + k] += g[k];
        sums[kOfBranchBias * s.channels + c + k] += of_branch[k];
      }
      store_pair(grad_x + start + c, make_pair<T>(of_x[0], of_x[1]));
      store_pair(grad_branch + start + c, make_pair<T>(of_branch[0], of_branch[1]));
    }
  }
  __syncthreads();
  const int numbers = kSums * s.channels;
  for (int i = threadIdx.x; i < numbers; i += s.warps * kWarpSize) {
    float total = 0;
    for (int other = 0; other < s.warps; ++other) total += shared[other * numbers + i];
    parts[int64_t(blockIdx.x) * numbers + i] = total;
  }
}

template <typename T>
struct GradientsOf {
  T* lines[kSums];  // in the order of the sums
};

// A block adds up some columns of the parts over their `rows`, each warp every kMaxWarps-th row; a lane has a column.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize)
    sums_kernel(const float* parts, int rows, GradientsOf<T> grad, int channels) {
  auto& shared = *reinterpret_cast<float (*)[kMaxWarps][kWarpSize]>(block_memory());
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int columns = kSums * channels, column = blockIdx.x * kWarpSize + lane;
  float sum = 0;
#pragma unroll 8
  for (int row = warp; row < rows && column < columns; row += kMaxWarps) sum += parts[int64_t(row) * columns + column];
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  for (int other = 1; other < kMaxWarps; ++other) sum += shared[other][lane];
  grad.lines[column / channels][column % channels] = T(sum);
}

template <typename T>
const T* pointer_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

Tensor in_pairs(const std::optional<Tensor>& tensor) {
  return tensor ? bioattn_mm::in_pairs(*tensor) : Tensor();
}

}  // namespace

AddNormResults add_norm_forward_cuda(
    const Tensor& any_x, const Tensor& any_branch, const std::optional<Tensor>& any_branch_bias,
    const std::optional<Tensor>& any_factor, const Tensor& any_weight, const Tensor& any_bias, double eps) {
  const DeviceGuard guard(any_x.device());
  const Sizes s(any_x, 1);
  const Tensor x = in_pairs(any_x), branch = in_pairs(any_branch), branch_bias = in_pairs(any_branch_bias);
  const Tensor factor = in_pairs(any_factor), weight = in_pairs(any_weight), bias = in_pairs(any_bias);
  const Tensor sum = empty_like(x), output = empty_like(x);
  const auto statistics = x.options().dtype(kFloat);
  const Tensor mean = empty(x.sizes().slice(0, 3), statistics), rstd = empty(x.sizes().slice(0, 3), statistics);
  dispatch<float, c10::Half, c10::BFloat16>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    launch(
        forward_kernel<T>, dim3(static_cast<unsigned>(divide_up(s.tokens, s.warps))), s.warps * kWarpSize, s.bytes(1),
        x.const_data_ptr<T>(), branch.const_data_ptr<T>(),
        pointer_or_null<T>(branch_bias), pointer_or_null<float>(factor), weight.const_data_ptr<T>(),
        bias.const_data_ptr<T>(), static_cast<float>(eps), sum.mutable_data_ptr<T>(), output.mutable_data_ptr<T>(),
        mean.mutable_data_ptr<float>(), rstd.mutable_data_ptr<float>(), s);
  });
  return {output, sum, mean, rstd};
}

AddNormGradients add_norm_backward_cuda(
    const Tensor& any_grad_output, const std::optional<Tensor>& any_grad_sum, const Tensor& any_sum,
    const Tensor& any_mean, const Tensor& any_rstd, const std::optional<Tensor>& any_factor,
    const Tensor& any_weight) {
  const DeviceGuard guard(any_sum.device());
  const Sizes s(any_sum, kSums);
  const Tensor grad_output = in_pairs(any_grad_output), grad_sum = in_pairs(any_grad_sum), sum = in_pairs(any_sum);
  const Tensor mean = any_mean.contiguous(), rstd = any_rstd.contiguous();
  const Tensor factor = in_pairs(any_factor), weight = in_pairs(any_weight);
  const int tokens_of_warp = static_cast<int>(std::max<int64_t>(divide_up(s.tokens, s.warps * kSumBlocks), 1));
  const int blocks = static_cast<int>(divide_up(s.tokens, s.warps * tokens_of_warp));
  const Tensor parts = empty({blocks, kSums, s.channels}, mean.options());
  const Tensor grad_x = empty_like(sum), grad_branch = empty_like(sum);
  const Tensor grad_weight = empty_like(weight), grad_bias = empty_like(weight), grad_branch_bias = empty_like(weight);
  dispatch<float, c10::Half, c10::BFloat16>(sum.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    launch(
        backward_kernel<T>, dim3(blocks), s.warps * kWarpSize, s.bytes(kSums),
        grad_output.const_data_ptr<T>(), pointer_or_null<T>(grad_sum), sum.const_data_ptr<T>(),
        mean.const_data_ptr<float>(), rstd.const_data_ptr<float>(), pointer_or_null<float>(factor),
        weight.const_data_ptr<T>(), grad_x.mutable_data_ptr<T>(), grad_branch.mutable_data_ptr<T>(),
        parts.mutable_data_ptr<float>(), tokens_of_warp, s);
    const GradientsOf<T> grad{
        {grad_weight.mutable_data_ptr<T>(), grad_bias.mutable_data_ptr<T>(), grad_branch_bias.mutable_data_ptr<T>()}};
    launch(
        sums_kernel<T>, dim3(divide_up(kSums * s.channels, kWarpSize)), kMaxWarps * kWarpSize,
        sizeof(float[kMaxWarps][kWarpSize]), parts.const_data_ptr<float>(), blocks, grad, s.channels);
  });
  return {grad_x, grad_branch, grad_branch_bias, grad_weight, grad_bias};
}

}  // namespace bioattn_mm
