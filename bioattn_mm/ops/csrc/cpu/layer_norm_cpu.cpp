// Layer normalisation of bfloat16 tokens on the CPU; the lanes of a vector are neighbouring channels.

#include "../layer_norm.h"
#include "vectors.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace bioattn_mm {

using at::Tensor;

#ifdef BIOATTN_FOR_BFLOAT16
namespace {

constexpr int64_t kWidth = kLanes<float>;
// Tokens whose gradients of weight and bias are added up before the sums of blocks are: one long sum would lose digits,
// and sums of blocks are the same for any number of threads.
constexpr int64_t kBlock = 64;
// Numbers that are worth a thread.
constexpr int64_t kGrain = 1 << 15;

// A token as vectors. Where its channels do not fill the last vector, this one begins earlier and has channels of the
// one before, which count as zero in sums.
struct Channels {
  explicit Channels(int64_t number) : number(number), vectors((number + kWidth - 1) / kWidth) {}

  BIOATTN_INLINE int64_t first(int64_t vector) const { return std::min(vector * kWidth, number - kWidth); }

  BIOATTN_INLINE Vector<float> once(int64_t vector, const Vector<float>& x) const {
    const int64_t repeated = vector * kWidth - first(vector);
    if (repeated == 0) return x;
    constexpr Vector<float> kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return kLane < float(repeated) ? Vector<float>{} : x;
  }

  int64_t number, vectors;
};

BIOATTN_FOR_BFLOAT16 BIOATTN_INLINE float sum_of_lanes(Vector<float> x) {
  x += __builtin_shuffle(x, Bits{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  x += __builtin_shuffle(x, Bits{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  x += __builtin_shuffle(x, Bits{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return x[0] + x[1];
}

struct Forward {
  const NativeBFloat16* x;
  const float *weight, *bias;
  NativeBFloat16* output;
  float *mean, *inverse_deviation;
  float eps;
};

BIOATTN_FOR_BFLOAT16 void normalise(const Forward f, const Channels channels, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const NativeBFloat16* x = f.x + token * channels.number;
    Vector<float> sum{}, squares{};
    for (int64_t v = 0; v < channels.vectors; ++v) sum += channels.once(v, load(x + channels.first(v)));
    const float mean = sum_of_lanes(sum) / channels.number;
    for (int64_t v = 0; v < channels.vectors; ++v) {
      const Vector<float> centred = channels.once(v, load(x + channels.first(v)) - mean);
      squares += centred * centred;
    }
    const float inverse = 1 / std::sqrt(sum_of_lanes(squares) / channels.number + f.eps);
    f.mean[token] = mean, f.inverse_deviation[token] = inverse;
    for (int64_t v = 0; v < channels.vectors; ++v) {
      const int64_t first = channels.first(v);
      const Vector<float> unit = (load(x + first) - mean) * inverse;
      store(f.output + token * channels.number + first, unit * load(f.weight + first) + load(f.bias + first));
    }
  }
}

struct Backward {
  const NativeBFloat16 *grad_output, *x;
  const float *mean, *inverse_deviation, *weight;
  NativeBFloat16* grad_x;
};

// `sums`, (2, vectors, lanes), is for the gradients of weight and bias.
BIOATTN_FOR_BFLOAT16 void differentiate(
    const Backward b, const Channels channels, int64_t begin, int64_t end, float* sums) {
  float *of_weight = sums, *of_bias = sums + channels.vectors * kWidth;
  std::fill_n(sums, 2 * channels.vectors * kWidth, 0.f);
  for (int64_t token = begin; token < end; ++token) {
    const NativeBFloat16 *x = b.x + token * channels.number, *grad_output = b.grad_output + token * channels.number;
    const float mean = b.mean[token], inverse = b.inverse_deviation[token];
    // Mean of the gradients of the normalised token, and of their products with it.
    Vector<float> sum{}, product{};
    for (int64_t v = 0; v < channels.vectors; ++v) {
      const int64_t first = channels.first(v);
      const Vector<float> unit = (load(x + first) - mean) * inverse;
      const Vector<float> of_output = load(grad_output + first);
      add_to(of_weight + v * kWidth, of_output * unit);
      add_to(of_bias + v * kWidth, of_output);
      const Vector<float> gradient = channels.once(v, of_output * load(b.weight + first));
      sum += gradient;
      product += gradient * unit;
    }
    const float shift = sum_of_lanes(sum) / channels.number, slope = sum_of_lanes(product) / channels.number;
    for (int64_t v = 0; v < channels.vectors; ++v) {
      const int64_t first = channels.first(v);
      const Vector<float> unit = (load(x + first) - mean) * inverse;
      const Vector<float> gradient = load(grad_output + first) * load(b.weight + first);
      store(b.grad_x + token * channels.number + first, (gradient - shift - unit * slope) * inverse);
    }
  }
}

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Mean and inverse standard deviation, (..., 1).
Tensor empty_statistic(const Tensor& x) {
  auto sizes = x.sizes().vec();
  sizes.back() = 1;
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

}  // namespace

bool layer_norm_can_run_cpu(const Tensor& x) { return has_bfloat16() && x.size(-1) >= kWidth; }

std::tuple<Tensor, Tensor, Tensor> layer_norm_forward_cpu(
    const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Channels channels(x.size(-1));
  const Tensor output = at::empty_like(x), mean = empty_statistic(x), inverse_deviation = empty_statistic(x);
  const Forward arguments{
      data_of<NativeBFloat16>(x), data_of<float>(weight), data_of<float>(bias), data_of<NativeBFloat16>(output),
      data_of<float>(mean), data_of<float>(inverse_deviation), float(eps)};
  at::parallel_for(0, mean.numel(), kGrain / channels.number + 1, [&](int64_t begin, int64_t end) {
    normalise(arguments, channels, begin, end);
  });
  return {output, mean, inverse_deviation};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_cpu(
    const Tensor& grad_output, const Tensor& x, const Tensor& mean, const Tensor& inverse_deviation,
    const Tensor& weight) {
  const Channels channels(x.size(-1));
  const int64_t tokens = mean.numel(), blocks = (tokens + kBlock - 1) / kBlock;
  const Tensor grad_x = at::empty_like(x);
  const Tensor sums = at::empty({blocks, 2, channels.vectors * kWidth}, weight.options());
  const Backward arguments{
      data_of<NativeBFloat16>(grad_output), data_of<NativeBFloat16>(x), data_of<float>(mean),
      data_of<float>(inverse_deviation), data_of<float>(weight), data_of<NativeBFloat16>(grad_x)};
  at::parallel_for(0, blocks, kGrain / (kBlock * channels.number) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      differentiate(
          arguments, channels, block * kBlock, std::min(tokens, (block + 1) * kBlock),
          data_of<float>(sums) + block * 2 * channels.vectors * kWidth);
  });
  const Tensor sum = sums.sum(0);
  const auto gradient = [&](int64_t row) {
    const Tensor grad = at::empty_like(weight);
    for (int64_t v = 0; v < channels.vectors; ++v)
      std::copy_n(
          data_of<float>(sum) + (row * channels.vectors + v) * kWidth, kWidth,
          data_of<float>(grad) + channels.first(v));
    return grad;
  };
  return {grad_x, gradient(0), gradient(1)};
}

#else

bool layer_norm_can_run_cpu(const Tensor&) { return false; }
std::tuple<Tensor, Tensor, Tensor> layer_norm_forward_cpu(const Tensor&, const Tensor&, const Tensor&, double) {
  TORCH_CHECK(false, "layer_norm was compiled without instructions of bfloat16");
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_cpu(
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  TORCH_CHECK(false, "layer_norm was compiled without instructions of bfloat16");
}

#endif

}  // namespace bioattn_mm
