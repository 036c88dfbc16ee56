// ConvGLU's gate on the CPU in one pass over the tokens; the lanes of a vector are neighbouring channels.
#pragma once

#include "gelu.h"

namespace bioattn_mm::BIOATTN_ISA::gated_convolution {
namespace {

// A tile's size. At its borders the gradient of the convolution is computed twice: cheaper than to store it.
constexpr int64_t kRows = 32, kColumns = 32;
constexpr int64_t kTaps = 9, kCacheLine = 64;
// The most cache lines of each token that are computed together. The tokens of a tile lie in more pages than the TLB
// holds: several lines share a look-up. Instruction sets with more registers were measured with one.
constexpr int64_t kLines = kRegisters < 32 ? 8 : 1;
// The sums of the backward pass: for the convolution's weight (one a tap) and bias, and gate's and features' bias.
enum { kOfConvolution = kTaps, kOfGate, kOfFeatures, kSums };

// A rectangle of an image's tokens and the channels `first` to `last`; pointers are to the image's first token.
template <typename Data>
struct Tile {
  using T = Arithmetic<Data>;
  const Data *x, *grad_output;      // (H, W, 2 C), (H, W, C)
  const T *weight, *bias, *x_bias;  // (taps, C), (C), (2 C)
  Data *output, *grad_x;            // (H, W, C), (H, W, 2 C)
  T* sums;                          // (kSums, C)
  int64_t height, width, channels, top, bottom, left, right, first, last;
};

// Neighbouring tokens of a row that share the loads of their neighbours; the last tokens of a row are one by one.
constexpr int64_t kTokens = 4;

// The tokens of a row of a tile, and two more on both sides, for one vector of channels.
constexpr int64_t kMargin = 2;
template <typename T>
using Row = Vector<T>[kColumns + 2 * kMargin];

// Three rows, of which the lowest takes the place of the one above when a row is finished.
template <typename T>
struct Rows {
  Row<T> rows[3];

  BIOATTN_INLINE Row<T>& operator[](int64_t i) { return rows[(i + 3) % 3]; }
};

template <typename T>
BIOATTN_INLINE void clear(Row<T>& row) {
  for (Vector<T>& token : row) token = Vector<T>{};
}

// Loads the gates of row i and adds their bias; outside of the image they are 0.
template <typename Data, typename T = Arithmetic<Data>>
BIOATTN_INLINE void load_gates(const Tile<Data>& t, int64_t first, int64_t i, Row<Arithmetic<Data>>& row) {
  const int64_t begin = std::max(t.left - kMargin, int64_t(0)), end = std::min(t.right + kMargin, t.width);
  if (i < 0 || i >= t.height || begin > t.left - kMargin || end < t.right + kMargin) clear<T>(row);
  if (i < 0 || i >= t.height) return;
  const Vector<T> bias = load(t.x_bias + first);
  const Data* source = t.x + i * t.width * 2 * t.channels + first;
  for (int64_t j = begin; j < end; ++j) {
    __builtin_prefetch(source + (j + t.width) * 2 * t.channels);
    row[j - t.left + kMargin] = load(source + j * 2 * t.channels) + bias;
  }
}

// sums[k] += convolution at token j + k of row i
template <int64_t kNumber, typename T>
BIOATTN_INLINE void add_convolution(
    Vector<T> (&sums)[kNumber], const Vector<T> (&weights)[kTaps], Rows<T>& rows, int64_t i, int64_t column) {
#pragma GCC unroll 3
  for (int64_t dy = 0; dy < 3; ++dy) {
    const Vector<T>* tokens = rows[i + dy - 1] + column - 1;
#pragma GCC unroll 3
    for (int64_t dx = 0; dx < 3; ++dx)
#pragma GCC unroll 4
      for (int64_t k = 0; k < kNumber; ++k) sums[k] += weights[3 * dy + dx] * tokens[k + dx];
  }
}

// Calls Step::compute<number of tokens>(state, i, j) for the tokens of row i from column `begin` on to before `end`.
template <typename Step, typename State>
BIOATTN_INLINE void for_tokens(State& state, int64_t i, int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j + kTokens <= end; j += kTokens) Step::template compute<kTokens>(state, i, j);
  for (; j < end; ++j) Step::template compute<1>(state, i, j);
}

// The state of one vector of channels of a tile, from channel `first` on, which the steps below share.
template <typename Data>
struct State {
  using T = Arithmetic<Data>;

  BIOATTN_INLINE void begin(const Tile<Data>& of_tile, int64_t first_channel) {
    tile = of_tile, first = first_channel;
    bias = load(tile.bias + first), feature_bias = load(tile.x_bias + tile.channels + first);
    for (int64_t tap = 0; tap < kTaps; ++tap) weights[tap] = load(tile.weight + tap * tile.channels + first);
  }

  Tile<Data> tile;
  int64_t first;
  Vector<T> weights[kTaps], bias, feature_bias;
  Rows<T> gates;
};

template <typename Data>
struct GradientState : State<Data> {
  using typename State<Data>::T;

  BIOATTN_INLINE void begin(const Tile<Data>& of_tile, int64_t first_channel) {
    State<Data>::begin(of_tile, first_channel);
    for (int64_t tap = 0; tap < kTaps; ++tap) flipped[tap] = this->weights[kTaps - 1 - tap];
    for (int64_t k = 0; k < kSums; ++k) sums[k] = sums_of_row[k] = Vector<T>{};
  }

  // Adds the sums of a row to those of the tile: one long sum would lose digits.
  BIOATTN_INLINE void add_up() {
    for (int64_t k = 0; k < kSums; ++k) sums[k] += sums_of_row[k], sums_of_row[k] = Vector<T>{};
  }

  Rows<T> gradients;  // gradients of the convolution
  Vector<T> flipped[kTaps], sums[kSums], sums_of_row[kSums];
};

struct Convolve {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(State<Data>& state, int64_t i, int64_t j) {
    using T = Arithmetic<Data>;
    const Tile<Data>& t = state.tile;
    const int64_t token = i * t.width + j;
    Vector<T> sums[kNumber];
    for (int64_t k = 0; k < kNumber; ++k) sums[k] = state.bias;
    add_convolution<kNumber, T>(sums, state.weights, state.gates, i, j - t.left + kMargin);
    for (int64_t k = 0; k < kNumber; ++k) {
      __builtin_prefetch(t.x + (2 * (token + t.width + k) + 1) * t.channels + state.first);
      __builtin_prefetch(t.output + (token + t.width + k) * t.channels + state.first, 1);
      const Vector<T> features = load(t.x + (2 * (token + k) + 1) * t.channels + state.first) + state.feature_bias;
      store(t.output + (token + k) * t.channels + state.first, gelu(sums[k]) * features);
    }
  }
};

// Computes the gradient of the convolution and, for tokens of the tile itself, that of the features.
template <bool kOfTile>
struct DifferentiateGate {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(GradientState<Data>& state, int64_t i, int64_t j) {
    using T = Arithmetic<Data>;
    const Tile<Data>& t = state.tile;
    const int64_t token = i * t.width + j, column = j - t.left + kMargin;
    Vector<T> sums[kNumber];
    for (int64_t k = 0; k < kNumber; ++k) sums[k] = state.bias;
    add_convolution<kNumber, T>(sums, state.weights, state.gates, i, column);
    for (int64_t k = 0; k < kNumber; ++k) {
      Vector<T> cumulative, density;
      normal_distribution(sums[k], cumulative, density);
      const int64_t of_features = (2 * (token + k) + 1) * t.channels + state.first;
      __builtin_prefetch(t.grad_output + (token + t.width + k) * t.channels + state.first);
      __builtin_prefetch(t.x + of_features + 2 * t.width * t.channels);
      __builtin_prefetch(t.grad_x + of_features + 2 * t.width * t.channels, 1);
      __builtin_prefetch(t.grad_x + of_features + (2 * t.width - 1) * t.channels, 1);
      const Vector<T> gradient = load(t.grad_output + (token + k) * t.channels + state.first);
      const Vector<T> features = load(t.x + of_features) + state.feature_bias;
      state.gradients[i][column + k] = gradient * features * (cumulative + sums[k] * density);
      if (!kOfTile) continue;
      const Vector<T> grad_features = gradient * sums[k] * cumulative;
      store(t.grad_x + of_features, grad_features);
      state.sums_of_row[kOfFeatures] += grad_features;
    }
  }
};

// Adds to the sums for the gradients of the convolution's weight and bias.
struct AddToSums {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(GradientState<Data>& state, int64_t i, int64_t j) {
    using T = Arithmetic<Data>;
    const int64_t column = j - state.tile.left + kMargin;
    const Vector<T>* gradients = state.gradients[i] + column;
    for (int64_t k = 0; k < kNumber; ++k) state.sums_of_row[kOfConvolution] += gradients[k];
#pragma GCC unroll 3
    for (int64_t dy = 0; dy < 3; ++dy) {
      const Vector<T>* gates = state.gates[i + dy - 1] + column - 1;
#pragma GCC unroll 3
      for (int64_t dx = 0; dx < 3; ++dx)
#pragma GCC unroll 4
        for (int64_t k = 0; k < kNumber; ++k) state.sums_of_row[3 * dy + dx] += gradients[k] * gates[k + dx];
    }
  }
};

// Computes the gradient of the gates from that of the convolution.
struct ConvolveTransposed {
  template <int64_t kNumber, typename Data>
  BIOATTN_INLINE static void compute(GradientState<Data>& state, int64_t i, int64_t j) {
    using T = Arithmetic<Data>;
    const Tile<Data>& t = state.tile;
    Vector<T> sums[kNumber] = {};
    add_convolution<kNumber, T>(sums, state.flipped, state.gradients, i, j - t.left + kMargin);
    for (int64_t k = 0; k < kNumber; ++k) {
      store(t.grad_x + 2 * (i * t.width + j + k) * t.channels + state.first, sums[k]);
      state.sums_of_row[kOfGate] += sums[k];
    }
  }
};

// The states of a tile's vectors of channels, computed together row by row, while their cache lines are there.
template <typename Data, template <typename> typename StateOf>
struct AllStates {
  BIOATTN_INLINE explicit AllStates(const Tile<Data>& tile)
      : number((tile.last - tile.first) / kLanes<Arithmetic<Data>>) {
    for (int64_t v = 0; v < number; ++v) states[v].begin(tile, tile.first + v * kLanes<Arithmetic<Data>>);
  }

  BIOATTN_INLINE StateOf<Data>* begin() { return states; }
  BIOATTN_INLINE StateOf<Data>* end() { return states + number; }

  int64_t number;
  StateOf<Data> states[kLines * kCacheLine / sizeof(Data) / kLanes<Arithmetic<Data>>];
};

template <typename Data>
BIOATTN_KERNEL void convolve(const Tile<Data> tile) {
  AllStates<Data, State> all(tile);
  for (int64_t i = tile.top - 1; i <= tile.top; ++i)
    for (State<Data>& state : all) load_gates(tile, state.first, i, state.gates[i]);
  for (int64_t i = tile.top; i < tile.bottom; ++i)
    for (State<Data>& state : all) {
      load_gates(tile, state.first, i + 1, state.gates[i + 1]);
      for_tokens<Convolve>(state, i, tile.left, tile.right);
    }
}

// Computes the gradients of row i of the convolution and features, and then of the gates of the row above.
template <typename Data>
BIOATTN_INLINE void differentiate_row(GradientState<Data>& state, int64_t i) {
  const Tile<Data>& tile = state.tile;
  load_gates(tile, state.first, i + 1, state.gates[i + 1]);
  Row<Arithmetic<Data>>& gradients = state.gradients[i];
  const int64_t begin = std::max(tile.left - 1, int64_t(0)), end = std::min(tile.right + 1, tile.width);
  const bool inside = 0 <= i && i < tile.height;
  if (!inside || begin == tile.left || end == tile.right) clear<Arithmetic<Data>>(gradients);
  if (tile.top <= i && i < tile.bottom) {
    for_tokens<DifferentiateGate<false>>(state, i, begin, tile.left);
    for_tokens<DifferentiateGate<true>>(state, i, tile.left, tile.right);
    for_tokens<DifferentiateGate<false>>(state, i, tile.right, end);
    for_tokens<AddToSums>(state, i, tile.left, tile.right);
  } else if (inside) {
    for_tokens<DifferentiateGate<false>>(state, i, begin, end);
  }
  if (i > tile.top) for_tokens<ConvolveTransposed>(state, i - 1, tile.left, tile.right);
  state.add_up();
}

template <typename Data>
BIOATTN_KERNEL void differentiate(const Tile<Data> tile) {
  AllStates<Data, GradientState> all(tile);
  for (int64_t i = tile.top - 2; i < tile.top; ++i)
    for (GradientState<Data>& state : all) load_gates(tile, state.first, i, state.gates[i]);
  for (int64_t i = tile.top - 1; i <= tile.bottom; ++i)
    for (GradientState<Data>& state : all) differentiate_row(state, i);
  for (GradientState<Data>& state : all)
    for (int64_t k = 0; k < kSums; ++k) store(tile.sums + k * tile.channels + state.first, state.sums[k]);
}

// The number of rectangles of tokens in all images. Each has sums of its own.
int64_t number_of_rectangles(const Tensor& x) {
  return x.size(0) * divide_up(x.size(1), kRows) * divide_up(x.size(2), kColumns);
}

template <typename Data, typename Compute>
void for_tiles(const Tensor& x, const Tile<Data>& all, const Compute& compute) {
  const int64_t rows = divide_up(all.height, kRows), columns = divide_up(all.width, kColumns);
  const int64_t step = kCacheLine / sizeof(Data), groups = divide_up(all.channels, step);
  parallel_for(0, number_of_rectangles(x) * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin, lines; number < end; number += lines) {
      const int64_t rectangle = number / groups, group = number % groups;
      lines = std::min({kLines, end - number, groups - group});
      const int64_t tokens = rectangle / columns / rows * all.height * all.width * all.channels;
      Tile<Data> tile = all;
      tile.x += 2 * tokens;
      if (all.output) tile.output += tokens;
      if (all.grad_x)
        tile.grad_x += 2 * tokens, tile.grad_output += tokens, tile.sums += rectangle * kSums * all.channels;
      tile.top = rectangle / columns % rows * kRows, tile.bottom = std::min(tile.top + kRows, all.height);
      tile.left = rectangle % columns * kColumns, tile.right = std::min(tile.left + kColumns, all.width);
      tile.first = group * step, tile.last = std::min((group + lines) * step, all.channels);
      compute(tile);
    }
  });
}

// An uninitialised tensor like another. Memory above 32 MiB is new each time: pages of 2 MiB, because tiles would
// touch those of 4 KiB in an order that is bad for the caches.
Tensor empty_in_large_pages(const Tensor& like) {
  Tensor tensor = empty_like(like);
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t page = 1 << 21;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr()), end = begin + tensor.nbytes();
  const uintptr_t first = round_up(begin, page), last = end / page * page;
  if (tensor.nbytes() > 32 << 20) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  return tensor;
}

// `Tile` has pointers to these inputs of both passes, which have to live as long.
struct Parameters {
  Parameters(const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias)
      : taps(weight.view({weight.size(0), kTaps}).permute({1, 0}).contiguous()),
        bias(bias),
        x_bias(x_bias ? *x_bias : zeroed({2 * bias.size(0)}, bias.options())) {
    constexpr int64_t kMultiple = kCacheLine / sizeof(float);
    check_value(
        bias.size(0) % kMultiple == 0 && x.scalar_type() != kHalf,
        "gated_convolution on the CPU takes a multiple of ", kMultiple, " channels and no float16, got ",
        bias.size(0), " of ", x.scalar_type());
  }

  template <typename Data>
  Tile<Data> tile(const Tensor& x) const {
    Tile<Data> all{};
    all.x = DataOf{x}, all.weight = DataOf{taps}, all.bias = DataOf{bias}, all.x_bias = DataOf{x_bias};
    all.height = x.size(1), all.width = x.size(2), all.channels = bias.size(0);
    return all;
  }

  const Tensor taps, bias, x_bias;
};

}  // namespace

Tensor forward(const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight, const Tensor& bias) {
  Tensor output = empty({x.size(0), x.size(1), x.size(2), bias.size(0)}, x.options());
  const Parameters parameters(x, x_bias, weight, bias);
  for_dtype(x, [&](auto data) {
    auto all = parameters.tile<decltype(data)>(x);
    all.output = DataOf{output};
    for_tiles(x, all, [](const auto& tile) { convolve(tile); });
  });
  return output;
}

GatedConvolutionGradients backward(
    const Tensor& grad_output, const Tensor& x, const std::optional<Tensor>& x_bias, const Tensor& weight,
    const Tensor& bias) {
  Tensor grad_x = empty_in_large_pages(x);
  const Parameters parameters(x, x_bias, weight, bias);
  // The sums of rectangles are added up in order, so that they are the same for any number of threads.
  const int64_t channels = bias.size(0);
  const Tensor sums = empty({number_of_rectangles(x), kSums, channels}, weight.options());
  Tensor of_x_bias, of_taps, of_bias;
  for_dtype(x, [&](auto data) {
    auto all = parameters.tile<decltype(data)>(x);
    all.grad_output = DataOf{grad_output}, all.grad_x = DataOf{grad_x}, all.sums = DataOf{sums};
    for_tiles(x, all, [](const auto& tile) { differentiate(tile); });
    using T = Arithmetic<decltype(data)>;
    of_x_bias = sum_of_parts<T>(sums, kOfGate * channels, {(kSums - kOfGate) * channels});
    of_taps = sum_of_parts<T>(sums, 0, {kTaps, channels});
    of_bias = sum_of_parts<T>(sums, kOfConvolution * channels, {channels});
  });
  return {grad_x, of_x_bias, of_taps.permute({1, 0}).contiguous().view(weight.sizes()), of_bias};
}

}  // namespace bioattn_mm::BIOATTN_ISA::gated_convolution
