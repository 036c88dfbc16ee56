// What a linear layer computes on the CPU from tokens in bfloat16: gradients of weight and bias, and the weight in bfloat16.
//
// The gradient of the weight is the product of the transposed gradients of the output with the inputs: a sum over tokens.
// An instruction multiplies pairs of numbers, here those of two neighbouring tokens. For some hundred tokens at a time,
// inputs and gradients are copied into pairs, and tiles of the product are computed in registers.

#include "../linear.h"
#include "vectors.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace bioattn_mm {

using at::Tensor;

#ifdef BIOATTN_FOR_BFLOAT16
namespace {

constexpr int64_t kWidth = kLanes<float>;
// A tile has kRows outputs and at most kVectors * kWidth inputs: 24 sums, 3 vectors of inputs and one gradient are 28 of
// the 32 registers.
constexpr int64_t kRows = 8, kVectors = 3;
// Tokens whose pairs are in cache at the same time, and the numbers that their inputs may have.
constexpr int64_t kMostTokens = 512, kMostNumbers = 1 << 18;
// How many tokens before they are read they are fetched into the cache.
constexpr int64_t kAhead = 24;
// Products that are worth a thread.
constexpr int64_t kGrain = 1 << 20;

int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// kWidth columns of tokens, the first of them at `data`, in rows of `stride` numbers up to `end`. Where a row has less,
// others take their place, whose products are not used.
struct Columns {
  const NativeBFloat16 *data, *end;
  int64_t stride, tokens;

  BIOATTN_INLINE Bits load_token(int64_t token) const {
    if (token >= tokens) return Bits{};
    const NativeBFloat16* source = data + token * stride;
    __builtin_prefetch(source + kAhead * stride);
    HalfBits bits = {};
    if (source + kWidth <= end)
      bits = *reinterpret_cast<const HalfBitsInMemory*>(source);
    else
      std::memcpy(&bits, source, (end - source) * sizeof(NativeBFloat16));
    return __builtin_convertvector(bits, Bits);
  }
};

// Copies columns into pairs of neighbouring tokens, (pairs, kWidth), and returns their sum over all tokens.
BIOATTN_FOR_BFLOAT16 Vector<float> pack(const Columns columns, Pair* pairs) {
  const Bits ones = Bits{} + 0x3f803f80;
  Vector<float> sum = {};
  for (int64_t token = 0; token < columns.tokens; token += 2, pairs += kWidth) {
    const Bits packed = columns.load_token(token) | columns.load_token(token + 1) << 16;
    store(pairs, packed);
    add_pairs(sum, packed, ones);
  }
  return sum;
}

struct Gradients {
  const NativeBFloat16 *grad_output, *x;
  float *grad_weight, *grad_bias;
  int64_t tokens, outputs, inputs;
};

// Adds to a tile of the gradient of the weight, or begins it: `rows` outputs from `row` on, and the inputs of kNumber
// vectors from `column` on. `gradients` and `x` are pairs, those of a vector of inputs after those of the one before.
template <int64_t kNumber>
BIOATTN_FOR_BFLOAT16 void add_tile(
    const Gradients& g, const Pair* gradients, const Pair* x, int64_t pairs, int64_t row, int64_t rows, int64_t column,
    bool begin) {
  Vector<float> sums[kRows][kNumber] = {};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    Bits inputs[kNumber];
#pragma GCC unroll 3
    for (int64_t v = 0; v < kNumber; ++v) inputs[v] = load(x + (v * pairs + pair) * kWidth);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const Bits gradient = broadcast(gradients[pair * kWidth + r]);
#pragma GCC unroll 3
      for (int64_t v = 0; v < kNumber; ++v) add_pairs(sums[r][v], inputs[v], gradient);
    }
  }
  float totals[kRows][kNumber * kWidth];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int64_t v = 0; v < kNumber; ++v) store(totals[r] + v * kWidth, sums[r][v]);
  const int64_t columns = std::min(kNumber * kWidth, g.inputs - column);
  for (int64_t r = 0; r < rows; ++r) {
    float* target = g.grad_weight + (row + r) * g.inputs + column;
    for (int64_t k = 0; k < columns; ++k) target[k] = begin ? totals[r][k] : target[k] + totals[r][k];
  }
}

// The gradients of the outputs from `first` on to before `last`.
BIOATTN_FOR_BFLOAT16 void differentiate(const Gradients g, int64_t first, int64_t last) {
  const int64_t vectors = divide_up(g.inputs, kWidth);
  const int64_t most_tokens = std::max(int64_t(2), std::min(kMostTokens, kMostNumbers / (vectors * kWidth)) / 2 * 2);
  const int64_t most_pairs = most_tokens / 2;
  std::vector<Pair> x(vectors * most_pairs * kWidth), gradients(most_pairs * kWidth);
  std::fill(g.grad_bias + first, g.grad_bias + last, 0.f);
  for (int64_t token = 0; token < g.tokens; token += most_tokens) {
    const int64_t tokens = std::min(most_tokens, g.tokens - token), pairs = divide_up(tokens, 2);
    for (int64_t v = 0; v < vectors; ++v)
      pack(
          {g.x + token * g.inputs + v * kWidth, g.x + g.tokens * g.inputs, g.inputs, tokens},
          x.data() + v * pairs * kWidth);
    for (int64_t output = first; output < last; output += kWidth) {
      const int64_t outputs = std::min(kWidth, last - output);
      const Vector<float> sum =
          pack({g.grad_output + token * g.outputs + output, g.grad_output + g.tokens * g.outputs, g.outputs, tokens},
               gradients.data());
      for (int64_t k = 0; k < outputs; ++k) g.grad_bias[output + k] += sum[k];
      for (int64_t v = 0; v < vectors;) {
        const int64_t number = std::min(kVectors, vectors - v);
        constexpr decltype(&add_tile<1>) kAdd[] = {add_tile<1>, add_tile<2>, add_tile<3>};
        for (int64_t row = 0; row < outputs; row += kRows)
          kAdd[number - 1](
              g, gradients.data() + row, x.data() + v * pairs * kWidth, pairs, output + row,
              std::min(kRows, outputs - row), v * kWidth, token == 0);
        v += number;
      }
    }
  }
}

// Numbers whose conversion is worth a thread: to wake one takes as long as to convert tens of thousands of them.
constexpr int64_t kConverted = 1 << 18;

BIOATTN_FOR_BFLOAT16 void convert(const float* source, NativeBFloat16* target, int64_t count) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(target + i, load(source + i));
  float rest[kWidth] = {};
  NativeBFloat16 converted[kWidth];
  std::copy(source + i, source + count, rest);
  store(converted, load(rest));
  std::copy(converted, converted + (count - i), target + i);
}

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace

bool linear_gradients_can_run_cpu() { return has_bfloat16(); }

Tensor to_bfloat16_cpu(const Tensor& any_tensor) {
  const Tensor tensor = any_tensor.contiguous(), converted = at::empty(tensor.sizes(), tensor.options().dtype(at::kBFloat16));
  const auto* source = data_of<const float>(tensor);
  auto* target = data_of<NativeBFloat16>(converted);
  at::parallel_for(0, tensor.numel(), kConverted, [&](int64_t begin, int64_t end) {
    convert(source + begin, target + begin, end - begin);
  });
  return converted;
}

std::tuple<Tensor, Tensor> linear_gradients_cpu(const Tensor& grad_output, const Tensor& x) {
  const int64_t tokens = x.size(0), inputs = x.size(1), outputs = grad_output.size(1);
  const auto options = x.options().dtype(at::kFloat);
  const Tensor grad_bias = at::empty({outputs}, options);
  const Tensor grad_weight = tokens == 0 ? at::zeros({outputs, inputs}, options) : at::empty({outputs, inputs}, options);
  const Gradients gradients{
      data_of<const NativeBFloat16>(grad_output), data_of<const NativeBFloat16>(x), data_of<float>(grad_weight),
      data_of<float>(grad_bias), tokens, outputs, inputs};
  const int64_t grain = kGrain / std::max(int64_t(1), tokens * inputs * kRows) + 1;
  at::parallel_for(0, divide_up(outputs, kRows), grain, [&](int64_t begin, int64_t end) {
    differentiate(gradients, begin * kRows, std::min(outputs, end * kRows));
  });
  return {grad_weight, grad_bias};
}

#else

bool linear_gradients_can_run_cpu() { return false; }
Tensor to_bfloat16_cpu(const Tensor&) { TORCH_CHECK(false, "linear was compiled without instructions of bfloat16"); }
std::tuple<Tensor, Tensor> linear_gradients_cpu(const Tensor&, const Tensor&) {
  TORCH_CHECK(false, "linear was compiled without instructions of bfloat16");
}

#endif

}  // namespace bioattn_mm
