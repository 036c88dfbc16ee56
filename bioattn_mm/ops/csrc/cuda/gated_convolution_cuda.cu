// ConvGLU's gate on a GPU: convolution, GELU and product in one pass over the tokens. A lane has two channels; a warp
// goes along a row with the 3 x 3 window in registers; the warps of a block have rows below each other and share the
// cache.
// Backward, `features_kernel` gives the gradients of features and convolution, `gate_kernel` takes the latter back
// through the convolution, and `sums_kernel` adds up the parameters' gradients of the tiles, always in one order.

#include "gated_convolution.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kColumns = 16;              // columns of a tile, which has kWarps rows
constexpr int kChannels = 2 * kWarpSize;  // channels of a block
constexpr int kTaps = 9;

// The lines of the sums over the tokens, (tiles, kSums, C): the gradients of weight (one a tap), bias and x_bias.
enum { kOfBias = kTaps, kOfFeatures, kOfGate, kSums };

struct Sizes {
  explicit Sizes(const Tensor& x)
      : batch(static_cast<int>(x.size(0))),
        height(static_cast<int>(x.size(1))),
        width(static_cast<int>(x.size(2))),
        channels(static_cast<int>(x.size(3) / 2)) {
    check_value(channels % 2 == 0, "gated_convolution on CUDA takes an even number of channels, got ", x.size(3) / 2);
  }

  int tiles() const { return batch * tile_rows * tile_columns; }
  int blocks() const { return tiles() * groups; }

  int batch, height, width, channels;
  int groups = divide_up(channels, kChannels);
  int tile_rows = divide_up(height, kWarps), tile_columns = divide_up(width, kColumns);
};

// The parameters, in float32; `x_bias` may be null.
struct Parameters {
  const float *x_bias, *weight, *bias;  // (2 C), (C, taps), (C)
};

// Two neighbouring channels.
struct Channels {
  float of[2];
};

// Two neighbouring channels as they are in memory; in half precision they fit one register.
template <typename T>
using Raw = std::conditional_t<sizeof(T) == 2, uint32_t, Pair<T>>;

template <typename T>
__device__ __forceinline__ Raw<T> load_raw(const T* address) {
  return *reinterpret_cast<const Raw<T>*>(address);
}

template <typename T>
__device__ __forceinline__ Channels channels_of(const Raw<T>& raw) {
  const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(&raw);
  return {{static_cast<float>(pair.x), static_cast<float>(pair.y)}};
}

__device__ __forceinline__ Channels load(const float* data, int64_t place) {
  return channels_of<float>(load_raw(data + place));
}

__device__ __forceinline__ Channels load_if_given(const float* data, int64_t place) {
  return data ? load(data, place) : Channels{};
}

template <typename T>
__device__ __forceinline__ void store(T* address, const Channels& x) {
  *reinterpret_cast<Pair<T>*>(address) = make_pair<T>(x.of[0], x.of[1]);
}

// The part of a thread: a piece of a row of tokens, and two channels.
struct Place {
  __device__ __forceinline__ explicit Place(const Sizes& s) {
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, block = blockIdx.x;
    first_channel = block % s.groups * kChannels, tile = block / s.groups;
    channel = first_channel + 2 * lane;
    first = tile % s.tile_columns * kColumns, end = first + kColumns < s.width ? first + kColumns : s.width;
    row = tile / s.tile_columns % s.tile_rows * kWarps + warp;
    token = (int64_t(tile / s.tile_columns / s.tile_rows) * s.height + row) * s.width;
    exists = row < s.height && channel < s.channels;
  }

  int first_channel, tile;       // the block's
  int channel, row, first, end;  // the thread's, whose columns are first ... end - 1
  int64_t token;                 // index of its row's first token
  bool exists;
};

// The taps of a lane's channels. The block loads all of them through shared memory, to load neighbours together.
template <bool kReversed>
struct Taps {
  // All threads of the block call it. `shared` holds kChannels * kTaps elements.
  __device__ __forceinline__ Taps(const float* weight, float* shared, const Place& place, const Sizes& s) {
    const int count = (s.channels - place.first_channel) * kTaps;
    const float* const source = weight + int64_t(place.first_channel) * kTaps;
    for (int i = threadIdx.x; i < kChannels * kTaps; i += kThreads) shared[i] = i < count ? source[i] : 0.0f;
    __syncthreads();
    const float* const own = shared + threadIdx.x % kWarpSize * 2 * kTaps;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const int place = kReversed ? kTaps - 1 - tap : tap;
      of[tap] = {{own[place], own[kTaps + place]}};
    }
  }

  Channels of[kTaps];
};

// A row of tokens, at the channels of a thread; in memory the tokens are `stride` apart.
template <typename T>
struct Row {
  __device__ __forceinline__ T* at(int column) const { return start + int64_t(column) * stride; }

  T* start;  // the token in the first column of the image
  int stride;
};

// A thread's row of tokens with `stride` channels. Its channels are counted from `first_channel` on.
template <typename T>
__device__ __forceinline__ Row<T> row_of(T* tokens, int stride, int first_channel, const Place& place) {
  return {tokens + place.token * stride + first_channel + place.channel, stride};
}

// Tokens of a column in three rows.
template <typename T>
struct Column {
  Raw<T> rows[3];
};

// The 3 x 3 tokens around one that moves along a row. Outside of the image they are zero.
template <typename T>
struct Window {
  __device__ __forceinline__
  Window(const Row<const T>& row, const Channels& added, const Place& place, const Sizes& s)
      : width(s.width), added(added) {
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      has_row[k] = place.row + k > 0 && place.row + k <= s.height;
      rows[k] = row;
      if (has_row[k]) rows[k].start += int64_t(k - 1) * s.width * row.stride;
    }
    push(load(place.first - 1), place.first - 1);
    push(load(place.first), place.first);
  }

  // Outside of the image it loads some other column, whose elements are not used.
  __device__ __forceinline__ Column<T> load(int column) const {
    Column<T> loaded;
    const int inside = min(max(column, 0), width - 1);
#pragma unroll
    for (int k = 0; k < 3; ++k) loaded.rows[k] = load_raw(rows[k].at(inside));
    return loaded;
  }

  // Moves the window by one column: `loaded` is its new last column.
  __device__ __forceinline__ void push(const Column<T>& loaded, int column) {
    const bool inside = column >= 0 && column < width;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      x[k][0] = x[k][1], x[k][1] = x[k][2], x[k][2] = channels_of<T>(loaded.rows[k]);
#pragma unroll
      for (int c = 0; c < 2; ++c) x[k][2].of[c] = inside && has_row[k] ? x[k][2].of[c] + added.of[c] : 0.0f;
    }
  }

  __device__ __forceinline__ const Channels& tap(int tap) const { return x[tap / 3][tap % 3]; }

  int width;
  Channels added;
  Row<const T> rows[3];
  bool has_row[3];
  Channels x[3][3] = {};
};

// Goes along a piece of a row, loading each column while the one before is computed. After three columns the window
// has the same registers again: a loop with three columns in a round copies none.
template <int kInARound, typename Load, typename Step>
__device__ __forceinline__ void walk(const Place& place, const Load& load, const Step& step) {
  auto next = load(place.first);
#pragma unroll kInARound
  for (int column = place.first; column < place.end; ++column) {
    const auto loaded = next;
    next = load(min(column + 1, place.end - 1));
    step(column, loaded);
  }
}

template <bool kReversed, typename T>
__device__ __forceinline__ float convolved(
    const Taps<kReversed>& taps, const Window<T>& window, const Channels& bias, int channel) {
  float sum = bias.of[channel];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) sum += taps.of[tap].of[channel] * window.tap(tap).of[channel];
  return sum;
}

// Shared memory: the taps, then sums of each warp.
constexpr size_t kTapsBytes = kChannels * kTaps * sizeof(float);
constexpr size_t shared_bytes(int sums) { return kTapsBytes + sums * kWarps * kChannels * sizeof(float); }

template <typename T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* __restrict__ x, Parameters parameters, T* __restrict__ output, Sizes s) {
  const Place place(s);
  const Taps<false> taps(parameters.weight, reinterpret_cast<float*>(block_memory()), place, s);
  if (!place.exists) return;
  const Channels bias = load(parameters.bias, place.channel);
  const Channels added = load_if_given(parameters.x_bias, s.channels + place.channel);
  const Row<const T> gates = row_of(x, 2 * s.channels, 0, place),
                     features = row_of(x, 2 * s.channels, s.channels, place);
  const Row<T> target = row_of(output, s.channels, 0, place);
  Window<T> gate(gates, load_if_given(parameters.x_bias, place.channel), place, s);
  struct Loaded {
    Column<T> gate;
    Raw<T> feature;
  };
  const auto load_column = [&](int column) { return Loaded{gate.load(column + 1), load_raw(features.at(column))}; };
  walk<3>(place, load_column, [&](int column, const Loaded& loaded) {
    gate.push(loaded.gate, column + 1);
    const Channels feature = channels_of<T>(loaded.feature);
    Channels result;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float sum = convolved(taps, gate, bias, c);
      result.of[c] = sum * cumulative(sum) * (feature.of[c] + added.of[c]);
    }
    store(target.at(column), result);
  });
}

// Adds up sums over the warps of a block, always in the same order, and stores them in the lines of the tile's part.
template <int kCount>
__device__ __forceinline__ void store_sums(
    const Channels (&sums)[kCount], float* shared, float* parts, int first_line, const Place& place, const Sizes& s) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int k = 0; k < kCount; ++k) store(shared + (k * kWarps + warp) * kChannels + 2 * lane, sums[k]);
  __syncthreads();
  for (int i = threadIdx.x; i < kCount * kChannels; i += kThreads) {
    const int line = i / kChannels, channel = i % kChannels;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += shared[(line * kWarps + warp) * kChannels + channel];
    if (place.first_channel + channel < s.channels)
      parts[(int64_t(place.tile) * kSums + first_line + line) * s.channels + place.first_channel + channel] = sum;
  }
}

// Writes the gradients of features and convolution, and all sums but the gate's.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) features_kernel(
    const T* __restrict__ grad_output, const T* __restrict__ x, Parameters parameters, T* __restrict__ grad_x,
    T* __restrict__ grad_convolution, float* __restrict__ parts, Sizes s) {
  char* const shared = block_memory();
  const Place place(s);
  const Taps<false> taps(parameters.weight, reinterpret_cast<float*>(shared), place, s);
  Channels sums[kOfFeatures + 1] = {};
  if (place.exists) {
    const Channels bias = load(parameters.bias, place.channel);
    const Channels added = load_if_given(parameters.x_bias, s.channels + place.channel);
    const Row<const T> gates = row_of(x, 2 * s.channels, 0, place);
    const Row<const T> features = row_of(x, 2 * s.channels, s.channels, place);
    const Row<const T> gradients = row_of(grad_output, s.channels, 0, place);
    const Row<T> target = row_of(grad_x, 2 * s.channels, s.channels, place);
    const Row<T> convolution_target = row_of(grad_convolution, s.channels, 0, place);
    Window<T> gate(gates, load_if_given(parameters.x_bias, place.channel), place, s);
    struct Loaded {
      Column<T> gate;
      Raw<T> feature, grad;
    };
    const auto load_column = [&](int column) {
      return Loaded{gate.load(column + 1), load_raw(features.at(column)), load_raw(gradients.at(column))};
    };
    // Three columns in a round would not fit the registers.
    walk<2>(place, load_column, [&](int column, const Loaded& loaded) {
      gate.push(loaded.gate, column + 1);
      const Channels feature = channels_of<T>(loaded.feature), grad = channels_of<T>(loaded.grad);
      Channels grad_feature, grad_sum;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = convolved(taps, gate, bias, c), probability = cumulative(sum);
        grad_feature.of[c] = grad.of[c] * sum * probability;
        grad_sum.of[c] = grad.of[c] * (feature.of[c] + added.of[c]) * gelu_slope(sum, probability);
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) sums[tap].of[c] += grad_sum.of[c] * gate.tap(tap).of[c];
        sums[kOfBias].of[c] += grad_sum.of[c];
        sums[kOfFeatures].of[c] += grad_feature.of[c];
      }
      store(target.at(column), grad_feature);
      store(convolution_target.at(column), grad_sum);
    });
  }
  store_sums(sums, reinterpret_cast<float*>(shared + kTapsBytes), parts, 0, place, s);
}

// Writes the gradient of the gate, beside that of the features, by the transposed convolution.
template <typename T>
__global__ void __launch_bounds__(kThreads) gate_kernel(
    const T* __restrict__ grad_convolution, const float* weight, T* __restrict__ grad_x, float* __restrict__ parts,
    Sizes s) {
  char* const shared = block_memory();
  const Place place(s);
  const Taps<true> taps(weight, reinterpret_cast<float*>(shared), place, s);
  Channels sums[1] = {};
  if (place.exists) {
    const Row<T> target = row_of(grad_x, 2 * s.channels, 0, place);
    Window<T> grad(row_of(grad_convolution, s.channels, 0, place), Channels{}, place, s);
    const auto load_column = [&](int column) { return grad.load(column + 1); };
    walk<3>(place, load_column, [&](int column, const Column<T>& loaded) {
      grad.push(loaded, column + 1);
      Channels result;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        result.of[c] = convolved(taps, grad, Channels{}, c);
        sums[0].of[c] += result.of[c];
      }
      store(target.at(column), result);
    });
  }
  store_sums(sums, reinterpret_cast<float*>(shared + kTapsBytes), parts, kOfGate, place, s);
}

struct GradientsOf {
  float *x_bias, *weight, *bias;  // shapes as in `Parameters`
};

__global__ void __launch_bounds__(kThreads) sums_kernel(const float* parts, int tiles, GradientsOf grad, Sizes s) {
  const ColumnSum<kWarps> of_column(parts, tiles, kSums * s.channels);
  if (!of_column.exists) return;
  const int line = of_column.column / s.channels, channel = of_column.column % s.channels;
  const float sum = of_column.sum;
  if (line < kTaps)
    grad.weight[int64_t(channel) * kTaps + line] = sum;
  else if (line == kOfBias)
    grad.bias[channel] = sum;
  else
    grad.x_bias[line == kOfGate ? channel : s.channels + channel] = sum;
}

Parameters parameters_of(const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  return {kernel_argument<const float*>(x_bias), DataOf{weight}, DataOf{bias}};
}

}  // namespace

Tensor gated_convolution_forward_cuda(
    const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  const Sizes s(x);
  const Parameters parameters = parameters_of(x_bias, weight, bias);
  Tensor output = empty({s.batch, s.height, s.width, s.channels}, x.options());
  for_float_dtypes(x, [&](auto zero) {
    using T = decltype(zero);
    launch(forward_kernel<T>, dim3(s.blocks()), kThreads, shared_bytes(0), x, parameters, output, s);
  });
  return output;
}

GatedConvolutionGradients gated_convolution_backward_cuda(
    const Tensor& grad_output, const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias) {
  const Sizes s(x);
  const Parameters parameters = parameters_of(x_bias, weight, bias);
  const Tensor grad_x = empty_like(x), grad_convolution = empty_like(grad_output);
  const Tensor parts = empty({s.tiles(), kSums, s.channels}, bias.options());
  const Tensor grad_x_bias = empty({2 * s.channels}, bias.options());
  const Tensor grad_weight = empty_like(weight), grad_bias = empty_like(bias);
  for_float_dtypes(x, [&](auto zero) {
    using T = decltype(zero);
    launch(
        features_kernel<T>, dim3(s.blocks()), kThreads, shared_bytes(kOfFeatures + 1), grad_output, x, parameters,
        grad_x, grad_convolution, parts, s);
    launch(gate_kernel<T>, dim3(s.blocks()), kThreads, shared_bytes(1), grad_convolution, weight, grad_x, parts, s);
  });
  const GradientsOf grad{DataOf{grad_x_bias}, DataOf{grad_weight}, DataOf{grad_bias}};
  launch(
      sums_kernel, dim3(divide_up(kSums * s.channels, kWarpSize)), kThreads, ColumnSum<kWarps>::kSharedBytes, parts,
      s.tiles(), grad, s);
  return {grad_x, grad_x_bias, grad_weight, grad_bias};
}

}  // namespace bioattn_mm
