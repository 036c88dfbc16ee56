// Residual and LayerNorm on the CPU in one pass over the tokens. A row's arithmetic stays in the L1 cache.
#pragma once

#include "gelu.h"

namespace bioattn_mm::BIOATTN_ISA::add_norm {
namespace {

// The most blocks of tokens with sums of their own for the parameters' gradients, whatever the threads.
constexpr int64_t kBlocks = 32;
constexpr int64_t kSums = 3;  // of the weight, the bias, and the bias added before the norm

// Pointers to tensors, as in add_norm's schema. Those that may be missing are null.
template <typename Data>
struct Tokens {
  using T = Arithmetic<Data>;
  const Data *x, *branch, *branch_bias, *grad_output, *grad_sum;
  const T *factors, *weight, *bias;
  Data *sum, *output, *grad_x, *grad_branch;
  T *mean, *rstd;
  int64_t tokens_of_image, channels;
  T eps;
};

template <typename Data>
BIOATTN_KERNEL void add_and_normalise(const Tokens<Data> t, int64_t begin, int64_t end, Arithmetic<Data>* row) {
  using T = Arithmetic<Data>;
  const int64_t channels = t.channels;
  for (int64_t token = begin, start = begin * channels; token < end; ++token, start += channels) {
    const T factor = t.factors ? t.factors[token / t.tokens_of_image] : T(1);
    for_vectors<T>(channels, [&](int64_t c) __attribute__((always_inline)) {
      const Vector<T> shift = t.branch_bias ? load(t.branch_bias + c) : Vector<T>{};
      store(t.sum + start + c, Vector<T>(load(t.x + start + c) + factor * (load(t.branch + start + c) + shift)));
      // The norm is that of the sum as it is stored, from which the backward pass computes it again.
      store(row + c, load(t.sum + start + c));
    });
    T total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < channels; ++c) total += row[c];
    const T mean = total / channels;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < channels; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const T rstd = 1 / std::sqrt(squares / channels + t.eps);
    for_vectors<T>(channels, [&](int64_t c) __attribute__((always_inline)) {
      store(t.output + start + c, Vector<T>((load(row + c) - mean) * rstd * load(t.weight + c) + load(t.bias + c)));
    });
    t.mean[token] = mean, t.rstd[token] = rstd;
  }
}

// Adds to the sums of a block, (kSums, C). The rows are (3, C).
template <typename Data>
BIOATTN_KERNEL void differentiate(
    const Tokens<Data> t, int64_t begin, int64_t end, Arithmetic<Data>* rows, Arithmetic<Data>* sums) {
  using T = Arithmetic<Data>;
  const int64_t channels = t.channels;
  const T* weight = t.weight;
  T *grad = rows, *unit = rows + channels, *of_branch = rows + 2 * channels;
  T *of_weight = sums, *of_bias = sums + channels, *of_branch_bias = sums + 2 * channels;
  for (int64_t token = begin, start = begin * channels; token < end; ++token, start += channels) {
    const T factor = t.factors ? t.factors[token / t.tokens_of_image] : T(1);
    const T mean = t.mean[token], rstd = t.rstd[token];
    for_vectors<T>(channels, [&](int64_t c) __attribute__((always_inline)) {
      store(grad + c, load(t.grad_output + start + c));
      store(unit + c, Vector<T>((load(t.sum + start + c) - mean) * rstd));
    });
    T of_output = 0, along = 0;
#pragma omp simd reduction(+ : of_output, along)
    for (int64_t c = 0; c < channels; ++c) {
      of_weight[c] += grad[c] * unit[c];
      of_bias[c] += grad[c];
      grad[c] *= weight[c];
      of_output += grad[c];
      along += grad[c] * unit[c];
    }
    of_output /= channels, along /= channels;
    for_vectors<T>(channels, [&](int64_t c) __attribute__((always_inline)) {
      Vector<T> of_x = rstd * (load(grad + c) - of_output - load(unit + c) * along);
      if (t.grad_sum) of_x += load(t.grad_sum + start + c);
      store(t.grad_x + start + c, of_x);
      store(of_branch + c, Vector<T>(of_x * factor));
      store(t.grad_branch + start + c, Vector<T>(of_x * factor));
    });
    add_scaled(of_branch_bias, T(1), of_branch, channels);
  }
}

template <typename Data>
Tokens<Data> tokens_like(const Tensor& x, const std::optional<Tensor>& factor, const Tensor& weight) {
  Tokens<Data> tokens{};
  tokens.factors = DataOf{factor ? *factor : Tensor()}, tokens.weight = DataOf{weight};
  tokens.tokens_of_image = x.size(1) * x.size(2), tokens.channels = x.size(3);
  return tokens;
}

}  // namespace

AddNormResults forward(
    const Tensor& x, const Tensor& branch, const std::optional<Tensor>& branch_bias,
    const std::optional<Tensor>& factor, const Tensor& weight, const Tensor& bias, double eps) {
  const Tensor output = empty_like(x), sum = empty_like(x);
  const Tensor mean = empty(x.sizes().slice(0, 3), weight.options()), rstd = empty_like(mean);
  for_dtype(x, [&](auto data) {
    using T = Arithmetic<decltype(data)>;
    auto t = tokens_like<decltype(data)>(x, factor, weight);
    t.x = DataOf{x}, t.branch = DataOf{branch}, t.branch_bias = DataOf{branch_bias ? *branch_bias : Tensor()};
    t.bias = DataOf{bias}, t.output = DataOf{output}, t.sum = DataOf{sum};
    t.mean = DataOf{mean}, t.rstd = DataOf{rstd}, t.eps = static_cast<T>(eps);
    parallel_for(0, mean.numel(), grain_of(t.channels), [&](int64_t begin, int64_t end) {
      add_and_normalise(t, begin, end, Buffer<T>(t.channels).data());
    });
  });
  return {output, sum, mean, rstd};
}

AddNormGradients backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& factor, const Tensor& weight) {
  const Tensor grad_x = empty_like(sum), grad_branch = empty_like(sum);
  const int64_t tokens = mean.numel(), blocks = std::clamp(sum.numel() / kGrain, int64_t(1), kBlocks);
  const int64_t channels = sum.size(3);
  const Tensor sums = zeroed({blocks, kSums, channels}, weight.options());
  std::array<Tensor, kSums> totals;
  for_dtype(sum, [&](auto data) {
    using T = Arithmetic<decltype(data)>;
    auto t = tokens_like<decltype(data)>(sum, factor, weight);
    t.grad_output = DataOf{grad_output}, t.grad_sum = DataOf{grad_sum ? *grad_sum : Tensor()}, t.sum = DataOf{sum};
    t.grad_x = DataOf{grad_x}, t.grad_branch = DataOf{grad_branch}, t.mean = DataOf{mean}, t.rstd = DataOf{rstd};
    T* const of_blocks = DataOf{sums};
    parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      Buffer<T> rows(3 * t.channels);
      for (int64_t k = begin; k < end; ++k)
        differentiate(
            t, k * tokens / blocks, (k + 1) * tokens / blocks, rows.data(), of_blocks + k * kSums * t.channels);
    });
    for (int64_t k = 0; k < kSums; ++k) totals[k] = sum_of_parts<T>(sums, k * channels, {channels});
  });
  return {grad_x, grad_branch, totals[2].to(sum.scalar_type()), totals[0], totals[1]};
}

}  // namespace bioattn_mm::BIOATTN_ISA::add_norm
