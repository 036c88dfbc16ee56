// ConvGLU's gate on the CPU in one pass over the tokens; the lanes of a vector are neighbouring channels.

#include "../gated_convolution.h"
#include "vectors.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <type_traits>

namespace bioattn_mm {
namespace {

using at::Tensor;

// Rows of a tile stay in the second-level cache until the next two are computed.
constexpr int64_t kRows = 8, kColumns = 32, kTaps = 9;

// The arithmetic is float32, for float64 it is float64.
template <typename Data>
using Number = std::conditional_t<std::is_same_v<Data, double>, double, float>;

// The distribution function and the density of the normal distribution; float to 1e-7 by formula 7.1.26 of Abramowitz
// and Stegun.
BIOATTN_INLINE void normal_distribution(float x, float& cumulative, float& density) {
  const float half = 0.70710678f * (x < 0 ? -x : x);
  const float exponent = exponential(-half * half);
  const float t = 1 / (1 + 0.3275911f * half);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = 0.5f * p * t * exponent;
  cumulative = x < 0 ? tail : 1 - tail;
  density = 0.39894228f * exponent;
}

BIOATTN_INLINE void normal_distribution(double x, double& cumulative, double& density) {
  cumulative = 0.5 * std::erfc(-x * 0.70710678118654752440);
  density = 0.39894228040143267794 * std::exp(-0.5 * x * x);
}

template <typename Data, typename T = Number<Data>>
BIOATTN_INLINE void normal_distribution(const Vector<T>& x, Vector<T>& cumulative, Vector<T>& density, const Data*) {
  T lanes[3][kLanes<T>];
  store(lanes[0], x);
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes<T>; ++lane) normal_distribution(lanes[0][lane], lanes[1][lane], lanes[2][lane]);
  cumulative = load(lanes[1]), density = load(lanes[2]);
}

#ifdef BIOATTN_FOR_BFLOAT16
// The same formula to 5e-5.
BIOATTN_INLINE void normal_distribution(
    const Vector<float>& x, Vector<float>& cumulative, Vector<float>& density, const NativeBFloat16*) {
  const Vector<float> half = 0.70710678f * (x < 0 ? -x : x);
  const Vector<float> exponent = rough_exponential(-half * half);
  const Vector<float> t = rough_inverse(1 + 0.3275911f * half);
  const Vector<float> p = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const Vector<float> tail = 0.5f * p * t * exponent;
  cumulative = x < 0 ? tail : 1 - tail;
  density = 0.39894228f * exponent;
}
#endif

// A rectangle of tokens of an image, the same in every tensor. Pointers are to the image.
template <typename Data>
struct Tile {
  using T = Number<Data>;
  const Data *x, *grad_output, *grad_convolution;  // (H, W, 2 C), (H, W, C), (H, W, C)
  const T *weight, *bias;                          // (taps, C), (C)
  Data *output, *new_grad_convolution;             // (H, W, C) each
  Data* grad_x;                                    // (H, W, 2 C)
  T* sums;                                         // (taps + 1, C), of the gradients of weight and bias
  int64_t height, width, channels, top, bottom, left, right;
};

// Neighbouring tokens of a row that share the loads of weights and sums; at the edges of an image, tokens are one by one.
constexpr int64_t kTokens = 4;

// Which neighbours of a token are inside of the image: rows above and below, columns before and after.
struct Inside {
  template <typename Data>
  Inside(const Tile<Data>& t, int64_t i, int64_t j)
      : rows{i > 0, true, i + 1 < t.height}, columns{j > 0, true, j + 1 < t.width} {}

  bool rows[3], columns[3];
};

// sums[k] += weight * neighbour over the neighbours of token k; `source` is the first token, `stride` the distance of
// tokens, and `row_stride` that of rows.
template <int64_t kNumber, bool kTransposed, typename T, typename Data>
BIOATTN_INLINE void add_convolution(
    Vector<T> (&sums)[kNumber], const T* weight, int64_t channels, const Data* source, int64_t stride,
    int64_t row_stride, const Inside& inside) {
#pragma GCC unroll 3
  for (int64_t dy = 0; dy < 3; ++dy) {
    if (!inside.rows[dy]) continue;
#pragma GCC unroll 3
    for (int64_t dx = 0; dx < 3; ++dx) {
      if (kNumber == 1 && !inside.columns[dx]) continue;
      const Vector<T> factor = load(weight + (kTransposed ? 8 - 3 * dy - dx : 3 * dy + dx) * channels);
#pragma GCC unroll 4
      for (int64_t k = 0; k < kNumber; ++k)
        sums[k] += factor * load(source + (dy - 1) * row_stride + (k + dx - 1) * stride);
    }
  }
}

// sums[tap] += factor[k] * neighbour of token k
template <int64_t kNumber, typename T, typename Data>
BIOATTN_INLINE void add_to_weight_sums(
    T* sums, int64_t channels, const Vector<T> (&factors)[kNumber], const Data* source, int64_t stride,
    int64_t row_stride, const Inside& inside) {
#pragma GCC unroll 3
  for (int64_t dy = 0; dy < 3; ++dy) {
    if (!inside.rows[dy]) continue;
#pragma GCC unroll 3
    for (int64_t dx = 0; dx < 3; ++dx) {
      if (kNumber == 1 && !inside.columns[dx]) continue;
      T* target = sums + (3 * dy + dx) * channels;
      Vector<T> sum = load(target);
#pragma GCC unroll 4
      for (int64_t k = 0; k < kNumber; ++k)
        sum += factors[k] * load(source + (dy - 1) * row_stride + (k + dx - 1) * stride);
      store(target, sum);
    }
  }
}

// The output of kNumber tokens of row i from column j on.
struct Convolve {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(const Tile<Data>& t, int64_t i, int64_t j) {
    using T = Number<Data>;
    const Inside inside(t, i, j);
    const int64_t stride = 2 * t.channels, row_stride = t.width * stride, token = i * t.width + j;
    for (int64_t first = 0; first < t.channels; first += kLanes<T>) {
      const Data* gate = t.x + token * stride + first;
      Vector<T> sums[kNumber];
      for (int64_t k = 0; k < kNumber; ++k) sums[k] = load(t.bias + first);
      add_convolution<kNumber, false, T>(sums, t.weight + first, t.channels, gate, stride, row_stride, inside);
      for (int64_t k = 0; k < kNumber; ++k) {
        Vector<T> cumulative, density;
        normal_distribution(sums[k], cumulative, density, t.x);
        const Vector<T> features = load(gate + k * stride + t.channels);
        store(t.output + (token + k) * t.channels + first, sums[k] * cumulative * features);
      }
    }
  }
};

// Gradients of features, convolution, weight and bias.
struct DifferentiateGate {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(const Tile<Data>& t, int64_t i, int64_t j) {
    using T = Number<Data>;
    const Inside inside(t, i, j);
    const int64_t stride = 2 * t.channels, row_stride = t.width * stride, token = i * t.width + j;
    for (int64_t first = 0; first < t.channels; first += kLanes<T>) {
      const Data* gate = t.x + token * stride + first;
      Vector<T> sums[kNumber], gradients[kNumber];
      for (int64_t k = 0; k < kNumber; ++k) sums[k] = load(t.bias + first);
      add_convolution<kNumber, false, T>(sums, t.weight + first, t.channels, gate, stride, row_stride, inside);
      T* bias_sum = t.sums + kTaps * t.channels + first;
      Vector<T> sum = load(bias_sum);
      for (int64_t k = 0; k < kNumber; ++k) {
        Vector<T> cumulative, density;
        normal_distribution(sums[k], cumulative, density, t.x);
        const Vector<T> gradient = load(t.grad_output + (token + k) * t.channels + first);
        const Vector<T> features = load(gate + k * stride + t.channels);
        store(t.grad_x + (token + k) * stride + t.channels + first, gradient * sums[k] * cumulative);
        gradients[k] = gradient * features * (cumulative + sums[k] * density);
        store(t.new_grad_convolution + (token + k) * t.channels + first, gradients[k]);
        sum += gradients[k];
      }
      store(bias_sum, sum);
      add_to_weight_sums<kNumber, T>(t.sums + first, t.channels, gradients, gate, stride, row_stride, inside);
    }
  }
};

// Gradient of the gate from that of the convolution.
struct ConvolveTransposed {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(const Tile<Data>& t, int64_t i, int64_t j) {
    using T = Number<Data>;
    const Inside inside(t, i, j);
    const int64_t token = i * t.width + j;
    for (int64_t first = 0; first < t.channels; first += kLanes<T>) {
      Vector<T> sums[kNumber] = {};
      add_convolution<kNumber, true, T>(
          sums, t.weight + first, t.channels, t.grad_convolution + token * t.channels + first, t.channels,
          t.width * t.channels, inside);
      for (int64_t k = 0; k < kNumber; ++k) store(t.grad_x + (token + k) * 2 * t.channels + first, sums[k]);
    }
  }
};

template <typename Step, typename Data>
BIOATTN_INLINE void for_tokens(const Tile<Data>& t) {
  for (int64_t i = t.top; i < t.bottom; ++i) {
    for (int64_t j = t.left; j < t.right;) {
      if (j > 0 && j + kTokens < t.width && j + kTokens <= t.right) {
        Step::template compute<kTokens>(t, i, j);
        j += kTokens;
      } else {
        Step::template compute<1>(t, i, j);
        ++j;
      }
    }
  }
}

#define CLONE_FOR_ALL(name, Step)                                                \
  BIOATTN_CLONES void name(const Tile<float>& tile) { for_tokens<Step>(tile); }  \
  BIOATTN_CLONES void name(const Tile<double>& tile) { for_tokens<Step>(tile); } \
  BIOATTN_CLONES void name(const Tile<c10::BFloat16>& tile) { for_tokens<Step>(tile); }

#ifdef BIOATTN_FOR_BFLOAT16
#define FOR_BFLOAT16(name, Step) \
  BIOATTN_FOR_BFLOAT16 void name(const Tile<NativeBFloat16>& tile) { for_tokens<Step>(tile); }
FOR_BFLOAT16(convolve, Convolve)
FOR_BFLOAT16(differentiate_gate, DifferentiateGate)
FOR_BFLOAT16(convolve_transposed, ConvolveTransposed)
#endif

CLONE_FOR_ALL(convolve, Convolve)
CLONE_FOR_ALL(differentiate_gate, DifferentiateGate)
CLONE_FOR_ALL(convolve_transposed, ConvolveTransposed)

// Calls compute(tile, strip of rows) for all tiles; a strip is computed by one thread, from left to right.
template <typename Data, typename Compute>
void for_tiles(int64_t batch, const Tile<Data>& all, const Compute& compute) {
  const int64_t strips = (all.height + kRows - 1) / kRows;
  at::parallel_for(0, batch * strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t tokens = strip / strips * all.height * all.width * all.channels;
      Tile<Data> tile = all;
      tile.x += 2 * tokens;
      if (all.output) tile.output += tokens;
      if (all.grad_x) {
        tile.grad_x += 2 * tokens, tile.grad_output += tokens, tile.grad_convolution += tokens;
        tile.new_grad_convolution += tokens, tile.sums += strip * (kTaps + 1) * all.channels;
      }
      tile.top = strip % strips * kRows, tile.bottom = std::min(tile.top + kRows, all.height);
      for (tile.left = 0; tile.left < all.width; tile.left += kColumns) {
        tile.right = std::min(tile.left + kColumns, all.width);
        compute(tile);
      }
    }
  });
}

// Calls function(Data()) with the dtype of the tokens.
template <typename Function>
void for_dtypes(const Tensor& tokens, const Function& function) {
#ifdef BIOATTN_FOR_BFLOAT16
  if (tokens.scalar_type() == at::kBFloat16 && has_bfloat16()) return function(NativeBFloat16());
#endif
  AT_DISPATCH_FLOATING_TYPES_AND(
      at::kBFloat16, tokens.scalar_type(), "gated_convolution", [&] { function(scalar_t()); });
}

}  // namespace

Tensor gated_convolution_forward_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const int64_t channels = weight.size(0);
  Tensor output = at::empty({x.size(0), x.size(1), x.size(2), channels}, x.options());
  const Tensor taps = weight.view({channels, kTaps}).t().contiguous();
  for_dtypes(x, [&](auto data) {
    using Data = decltype(data);
    using T = Number<Data>;
    Tile<Data> all{};
    all.x = static_cast<const Data*>(x.const_data_ptr()), all.output = static_cast<Data*>(output.mutable_data_ptr());
    all.weight = taps.const_data_ptr<T>(), all.bias = bias.const_data_ptr<T>();
    all.height = x.size(1), all.width = x.size(2), all.channels = channels;
    for_tiles(x.size(0), all, [](const auto& tile) { convolve(tile); });
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> gated_convolution_backward_cpu(
    const Tensor& grad_output, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const int64_t channels = weight.size(0), strips = x.size(0) * ((x.size(1) + kRows - 1) / kRows);
  Tensor grad_x = at::empty_like(x), grad_convolution = at::empty_like(grad_output);
  const Tensor taps = weight.view({channels, kTaps}).t().contiguous();
  // Each strip has its own sums; they are added up in order, so they are the same for any number of threads.
  const Tensor sums = at::zeros({strips, kTaps + 1, channels}, weight.options());
  for_dtypes(x, [&](auto data) {
    using Data = decltype(data);
    using T = Number<Data>;
    Tile<Data> all{};
    all.x = static_cast<const Data*>(x.const_data_ptr());
    all.grad_output = static_cast<const Data*>(grad_output.const_data_ptr());
    all.weight = taps.const_data_ptr<T>(), all.bias = bias.const_data_ptr<T>();
    all.grad_x = static_cast<Data*>(grad_x.mutable_data_ptr());
    all.new_grad_convolution = static_cast<Data*>(grad_convolution.mutable_data_ptr());
    all.grad_convolution = all.new_grad_convolution;
    all.sums = sums.mutable_data_ptr<T>();
    all.height = x.size(1), all.width = x.size(2), all.channels = channels;
    for_tiles(x.size(0), all, [](const auto& tile) { differentiate_gate(tile); });
    for_tiles(x.size(0), all, [](const auto& tile) { convolve_transposed(tile); });
  });
  const Tensor sum = sums.sum(0);
  return {grad_x, sum.slice(0, 0, kTaps).t().reshape(weight.sizes()).contiguous(), sum.select(0, kTaps).contiguous()};
}

}  // namespace bioattn_mm
