// LayerNorm and what is before it on a GPU, in one pass: residual and stochastic depth, or GELU and average pooling.
// A warp has a token, and a lane every 32nd pair of its channels; for pooling, a block has the tokens of a cell. Each
// block adds up what its tokens give to the parameters' gradients, and `sums_kernel` the blocks, always in one order.

#include "layer_norm.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {
namespace {

constexpr int kMaxWarps = 8;
constexpr int kChannelsOfWarp = 2 * kWarpSize;  // that its lanes have at once
// The lines of the sums for the gradients of parameters: those of the norm, and the bias added before it.
enum { kOfWeight, kOfBias, kOfBiasBefore, kSums };
constexpr int kSumsOfNorm = kOfBiasBefore;
constexpr int kSharedBytes = 48 << 10;  // what every GPU gives a block without being asked
constexpr int kMaxChannels = kSharedBytes / sizeof(float) / kSums;

// Bytes of shared memory in which each warp of a block has some lines of channels.
int bytes_of_lines(int warps, int lines, int channels) {
  return warps * lines * channels * static_cast<int>(sizeof(float));
}

// Blocks have as many warps, up to `warps`, as fit into shared memory with some lines of channels each.
int warps_that_fit(int warps, int lines, int channels) {
  check_value(
      channels % 2 == 0 && channels <= kMaxChannels, "this LayerNorm on CUDA takes an even number of channels up to ",
      int64_t(kMaxChannels), ", got ", int64_t(channels));
  while (warps > 1 && bytes_of_lines(warps, lines, channels) > kSharedBytes) warps /= 2;
  return warps;
}

// The most blocks whose sums are added up, on every GPU: eight a multiprocessor of an H100. Tests define fewer.
#ifndef BIOATTN_SUM_BLOCKS
#define BIOATTN_SUM_BLOCKS 1056
#endif
constexpr int kSumBlocks = BIOATTN_SUM_BLOCKS;

struct Sizes {
  // Blocks have warps with so many lines of channels each.
  Sizes(const Tensor& x, int lines)
      : tokens(x.size(0) * x.size(1) * x.size(2)),
        tokens_of_image(static_cast<int>(x.size(1) * x.size(2))),
        channels(static_cast<int>(x.size(3))),
        warps(warps_that_fit(kMaxWarps, lines, channels)) {}

  int64_t tokens;
  int tokens_of_image, channels, warps;
};

template <typename T>
__device__ __forceinline__ void store_pair(T* address, const Pair<T>& pair) {
  *reinterpret_cast<Pair<T>*>(address) = pair;
}

// The factor of a token's branch; without factors, 1.
__device__ __forceinline__ float factor_of(const float* factors, int64_t token, const Sizes& s) {
  return factors ? factors[token / s.tokens_of_image] : 1.0f;
}

// Writes the norm of a row in shared memory, where each lane reads what it wrote; `total` sums a lane's channels.
template <typename T>
__device__ __forceinline__ void store_norm(
    const float* row, float total, const T* weight, const T* bias, float eps, T* output, float* mean, float* rstd,
    int channels) {
  const int lane = threadIdx.x % kWarpSize;
  const float average = warp_sum(total) / channels;
  float squares = 0;
  for (int c = 2 * lane; c < channels; c += kChannelsOfWarp) {
    const float first = row[c] - average, second = row[c + 1] - average;
    squares += first * first + second * second;
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / channels + eps);
  for (int c = 2 * lane; c < channels; c += kChannelsOfWarp) {
    const Pair<T> w = load_pair(weight + c), b = load_pair(bias + c);
    const float first = (row[c] - average) * scale, second = (row[c + 1] - average) * scale;
    store_pair(output + c, make_pair<T>(first * float(w.x) + float(b.x), second * float(w.y) + float(b.y)));
  }
  if (lane == 0) *mean = average, *rstd = scale;
}

// The gradient of a row of channels before the norm, computed by a warp.
template <typename T>
struct NormGradient {
  __device__ __forceinline__
  NormGradient(const T* grad_output, const T* row, const T* weight, float mean, float rstd, int channels)
      : grad_output(grad_output), row(row), weight(weight), mean(mean), rstd(rstd) {
#pragma unroll 4
    for (int c = 2 * (threadIdx.x % kWarpSize); c < channels; c += kChannelsOfWarp) {
      const Pair<T> grad = load_pair(grad_output + c), x = load_pair(row + c), w = load_pair(weight + c);
      const float g[2] = {float(grad.x) * float(w.x), float(grad.y) * float(w.y)};
      of_output += g[0] + g[1];
      along += g[0] * ((float(x.x) - mean) * rstd) + g[1] * ((float(x.y) - mean) * rstd);
    }
    of_output = warp_sum(of_output) / channels, along = warp_sum(along) / channels;
  }

  // Gives the gradient at two channels, and what the sums need there: the normalised row and the output's gradient.
  __device__ __forceinline__ void at(int c, float (&of_row)[2], float (&unit)[2], float (&g)[2]) const {
    const Pair<T> grad = load_pair(grad_output + c), x = load_pair(row + c), w = load_pair(weight + c);
    const float weights[2] = {float(w.x), float(w.y)};
    g[0] = float(grad.x), g[1] = float(grad.y);
    unit[0] = (float(x.x) - mean) * rstd, unit[1] = (float(x.y) - mean) * rstd;
#pragma unroll
    for (int k = 0; k < 2; ++k) of_row[k] = rstd * (g[k] * weights[k] - of_output - unit[k] * along);
  }

  const T *grad_output, *row, *weight;
  float mean, rstd, of_output = 0, along = 0;
};

// A warp's lines of sums; each lane has its channels.
__device__ __forceinline__ void clear_sums(float* sums, int lines, int channels) {
  for (int line = 0; line < lines; ++line)
    for (int c = 2 * (threadIdx.x % kWarpSize); c < channels; c += kChannelsOfWarp)
      sums[line * channels + c] = 0, sums[line * channels + c + 1] = 0;
}

// Adds up the lines of all warps of a block, each with so many elements, and stores them as the block's part.
__device__ __forceinline__ void store_sums(const float* shared, float* parts, int warps, int numbers) {
  __syncthreads();
  for (int i = threadIdx.x; i < numbers; i += warps * kWarpSize) {
    float total = 0;
    for (int other = 0; other < warps; ++other) total += shared[other * numbers + i];
    parts[int64_t(blockIdx.x) * numbers + i] = total;
  }
}

// `branch_bias` and `factors` may be null.
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
  store_norm(row, total, weight, bias, eps, output + start, mean + token, rstd + token, s.channels);
}

// Writes the gradients of x and branch, and each block's sums (blocks, kSums, C). grad_sum and factors may be null.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) backward_kernel(
    const T* __restrict__ grad_output, const T* __restrict__ grad_sum, const T* __restrict__ sum, const float* mean,
    const float* rstd, const float* factors, const T* weight, T* __restrict__ grad_x, T* __restrict__ grad_branch,
    float* __restrict__ parts, int tokens_of_warp, Sizes s) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  float* const shared = reinterpret_cast<float*>(block_memory());
  float* const sums = shared + warp * kSums * s.channels;
  clear_sums(sums, kSums, s.channels);
  const int64_t first = (int64_t(blockIdx.x) * s.warps + warp) * tokens_of_warp;
  for (int64_t token = first; token < first + tokens_of_warp && token < s.tokens; ++token) {
    const int64_t start = token * s.channels;
    const float factor = factor_of(factors, token, s);
    const NormGradient<T> norm(grad_output + start, sum + start, weight, mean[token], rstd[token], s.channels);
#pragma unroll 2
    for (int c = 2 * lane; c < s.channels; c += kChannelsOfWarp) {
      const Pair<T> skipped = grad_sum ? load_pair(grad_sum + start + c) : Pair<T>{T(0), T(0)};
      const float others[2] = {float(skipped.x), float(skipped.y)};
      float of_x[2], of_branch[2], unit[2], grad[2];
      norm.at(c, of_x, unit, grad);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        of_x[k] += others[k];
        of_branch[k] = factor * of_x[k];
        sums[kOfWeight * s.channels + c + k] += grad[k] * unit[k];
        sums[kOfBias * s.channels + c + k] += grad[k];
        sums[kOfBiasBefore * s.channels + c + k] += of_branch[k];
      }
      store_pair(grad_x + start + c, make_pair<T>(of_x[0], of_x[1]));
      store_pair(grad_branch + start + c, make_pair<T>(of_branch[0], of_branch[1]));
    }
  }
  store_sums(shared, parts, s.warps, kSums * s.channels);
}

template <typename T>
struct GradientsOf {
  T* lines[kSums];  // in the order of the sums
};

template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize)
    sums_kernel(const float* parts, int blocks, GradientsOf<T> grad, int lines, int channels) {
  const ColumnSum<kMaxWarps> of_column(parts, blocks, lines * channels);
  if (of_column.exists) grad.lines[of_column.column / channels][of_column.column % channels] = T(of_column.sum);
}

// Tokens in cells, each of which is averaged to one: a block has a cell.
struct Cells {
  // Blocks have warps with so many lines of channels each, and no more warps than a cell has tokens.
  Cells(const Tensor& x, int64_t height, int64_t width, int lines)
      : number(static_cast<int>(x.size(0) * height * width)),
        height(static_cast<int>(height)),
        width(static_cast<int>(width)),
        cell_height(static_cast<int>(x.size(1) / height)),
        cell_width(static_cast<int>(x.size(2) / width)),
        channels(static_cast<int>(x.size(3))),
        warps(kMaxWarps),
        stride(x.stride(2)) {
    while (warps > tokens()) warps /= 2;
    warps = warps_that_fit(warps, lines, channels);
  }

  __host__ __device__ int tokens() const { return cell_height * cell_width; }
  // The index of a token of a cell in (B, H, W): the tokens of a cell lie apart in memory.
  __device__ int64_t place(int cell, int token) const {
    const int image = cell / (height * width), row = cell / width % height * cell_height + token / cell_width;
    const int64_t rows = (static_cast<int64_t>(image) * height * cell_height + row) * width * cell_width;
    return rows + cell % width * cell_width + token % cell_width;
  }

  int number, height, width;  // of all images; of one
  int cell_height, cell_width, channels, warps;
  int64_t stride;  // from token to token of x
};

// Each warp adds up some tokens of a cell, and the first one goes on with their mean.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) pool_kernel(
    const T* __restrict__ x, const T* weight, const T* bias, float eps, T* __restrict__ output,
    T* __restrict__ pooled, float* mean, float* rstd, Cells cells) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, cell = blockIdx.x;
  const int channels = cells.channels, tokens = cells.tokens();
  float* const shared = reinterpret_cast<float*>(block_memory());
  for (int c = 2 * lane; c < channels; c += kChannelsOfWarp) {
    float sums[2] = {};
#pragma unroll 4
    for (int token = warp; token < tokens; token += cells.warps) {
      const Pair<T> pair = load_pair(x + cells.place(cell, token) * cells.stride + c);
      const float first = float(pair.x), second = float(pair.y);
      sums[0] += first * cumulative(first), sums[1] += second * cumulative(second);
    }
    shared[warp * channels + c] = sums[0], shared[warp * channels + c + 1] = sums[1];
  }
  __syncthreads();
  if (warp > 0) return;
  const int64_t start = static_cast<int64_t>(cell) * channels;
  float total = 0;
  for (int c = 2 * lane; c < channels; c += kChannelsOfWarp) {
    float sums[2] = {};
    for (int other = 0; other < cells.warps; ++other)
      sums[0] += shared[other * channels + c], sums[1] += shared[other * channels + c + 1];
    // The norm is that of the mean as it is stored, from which the backward pass computes it again.
    const Pair<T> average = make_pair<T>(sums[0] / tokens, sums[1] / tokens);
    store_pair(pooled + start + c, average);
    shared[c] = float(average.x), shared[c + 1] = float(average.y);
    total += shared[c] + shared[c + 1];
  }
  store_norm(shared, total, weight, bias, eps, output + start, mean + cell, rstd + cell, channels);
}

// Writes the gradient of x, and each block's sums (blocks, kSumsOfNorm, C). Its warps share the tokens of its cells.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) pool_backward_kernel(
    const T* __restrict__ grad_output, const T* __restrict__ x, const T* __restrict__ pooled, const float* mean,
    const float* rstd, const T* weight, T* __restrict__ grad_x, float* __restrict__ parts, int cells_of_block,
    Cells cells) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int channels = cells.channels, tokens = cells.tokens();
  float* const shared = reinterpret_cast<float*>(block_memory());
  float* const sums = shared + warp * kSumsOfNorm * channels;
  clear_sums(sums, kSumsOfNorm, channels);
  const int first = blockIdx.x * cells_of_block;
  for (int cell = first; cell < first + cells_of_block && cell < cells.number; ++cell) {
    const int64_t start = static_cast<int64_t>(cell) * channels;
    const NormGradient<T> norm(grad_output + start, pooled + start, weight, mean[cell], rstd[cell], channels);
    for (int c = 2 * lane; c < channels; c += kChannelsOfWarp) {
      float of_pooled[2], unit[2], grad[2];
      norm.at(c, of_pooled, unit, grad);
#pragma unroll 2
      for (int token = warp; token < tokens; token += cells.warps) {
        const int64_t place = cells.place(cell, token);
        const Pair<T> pair = load_pair(x + place * cells.stride + c);
        const float values[2] = {float(pair.x), float(pair.y)};
        float of_x[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) of_x[k] = of_pooled[k] / tokens * gelu_slope(values[k], cumulative(values[k]));
        store_pair(grad_x + place * channels + c, make_pair<T>(of_x[0], of_x[1]));
      }
      if (warp > 0) continue;  // each has the same of the norm
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        sums[kOfWeight * channels + c + k] += grad[k] * unit[k];
        sums[kOfBias * channels + c + k] += grad[k];
      }
    }
  }
  store_sums(shared, parts, cells.warps, kSumsOfNorm * channels);
}

// Adds up parts (blocks, lines, C) to the gradients of the norm's weight and bias, and of the bias before it.
template <typename T>
std::array<Tensor, kSums> sums_of(const Tensor& parts, const Tensor& weight) {
  const std::array<Tensor, kSums> sums{empty_like(weight), empty_like(weight), empty_like(weight)};
  GradientsOf<T> grad;
  for (int line = 0; line < kSums; ++line) grad.lines[line] = DataOf{sums[line]};
  const int lines = static_cast<int>(parts.size(1)), channels = static_cast<int>(parts.size(2));
  launch(
      sums_kernel<T>, dim3(divide_up(lines * channels, kWarpSize)), kMaxWarps * kWarpSize,
      ColumnSum<kMaxWarps>::kSharedBytes, parts, static_cast<int>(parts.size(0)), grad, lines, channels);
  return sums;
}

}  // namespace

AddNormResults add_norm_forward_cuda(
    const Tensor& x, const Tensor& branch, const std::optional<Tensor>& branch_bias,
    const std::optional<Tensor>& factor, const Tensor& weight, const Tensor& bias, double eps) {
  const Sizes s(x, 1);
  const Tensor sum = empty_like(x), output = empty_like(x);
  const Tensor mean = empty(x.sizes().slice(0, 3), x.options().dtype(kFloat)), rstd = empty_like(mean);
  for_float_dtypes(x, [&](auto zero) {
    using T = decltype(zero);
    launch(
        forward_kernel<T>, dim3(static_cast<unsigned>(divide_up(s.tokens, s.warps))), s.warps * kWarpSize,
        bytes_of_lines(s.warps, 1, s.channels), x, branch, branch_bias, factor, weight, bias, static_cast<float>(eps),
        sum, output, mean, rstd, s);
  });
  return {output, sum, mean, rstd};
}

AddNormGradients add_norm_backward_cuda(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& factor, const Tensor& weight) {
  const Sizes s(sum, kSums);
  const int tokens_of_warp = static_cast<int>(std::max<int64_t>(divide_up(s.tokens, s.warps * kSumBlocks), 1));
  const int blocks = static_cast<int>(divide_up(s.tokens, s.warps * tokens_of_warp));
  const Tensor parts = empty({blocks, kSums, s.channels}, mean.options());
  const Tensor grad_x = empty_like(sum), grad_branch = empty_like(sum);
  std::array<Tensor, kSums> sums;
  for_float_dtypes(sum, [&](auto zero) {
    using T = decltype(zero);
    launch(
        backward_kernel<T>, dim3(blocks), s.warps * kWarpSize, bytes_of_lines(s.warps, kSums, s.channels),
        grad_output, grad_sum, sum, mean, rstd, factor, weight, grad_x, grad_branch, parts, tokens_of_warp, s);
    sums = sums_of<T>(parts, weight);
  });
  return {grad_x, grad_branch, sums[kOfBiasBefore], sums[kOfWeight], sums[kOfBias]};
}

GeluPoolNormResults gelu_pool_norm_forward_cuda(
    const StridedTokens& x, const Tensor& weight, const Tensor& bias, int64_t height, int64_t width, double eps) {
  const Cells cells(x, height, width, 1);
  const Tensor output = empty({x.size(0), height, width, x.size(3)}, x.options()), pooled = empty_like(output);
  const Tensor mean = empty({x.size(0), height, width}, x.options().dtype(kFloat)), rstd = empty_like(mean);
  for_float_dtypes(x, [&](auto zero) {
    using T = decltype(zero);
    launch(
        pool_kernel<T>, dim3(cells.number), cells.warps * kWarpSize, bytes_of_lines(cells.warps, 1, cells.channels),
        x, weight, bias, static_cast<float>(eps), output, pooled, mean, rstd, cells);
  });
  return {output, pooled, mean, rstd};
}

GeluPoolNormGradients gelu_pool_norm_backward_cuda(
    const Tensor& grad_output, const StridedTokens& x, const Tensor& pooled, const Tensor& mean, const Tensor& rstd,
    const Tensor& weight) {
  const Cells cells(x, pooled.size(1), pooled.size(2), kSumsOfNorm);
  const int cells_of_block = std::max(divide_up(cells.number, kSumBlocks), 1);
  const int blocks = divide_up(cells.number, cells_of_block);
  const Tensor parts = empty({blocks, kSumsOfNorm, cells.channels}, mean.options());
  const Tensor grad_x = empty_like(x);
  std::array<Tensor, kSums> sums;
  for_float_dtypes(x, [&](auto zero) {
    using T = decltype(zero);
    launch(
        pool_backward_kernel<T>, dim3(blocks), cells.warps * kWarpSize,
        bytes_of_lines(cells.warps, kSumsOfNorm, cells.channels), grad_output, x, pooled, mean, rstd, weight, grad_x,
        parts, cells_of_block, cells);
    sums = sums_of<T>(parts, weight);
  });
  return {grad_x, sums[kOfWeight], sums[kOfBias]};
}

}  // namespace bioattn_mm
