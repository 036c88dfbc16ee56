// The sliding window on the CPU: each output is gathered by one thread, in one order whatever their number.

#include "../sliding_window.h"
#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace bioattn_mm {
namespace {

using at::Tensor;

// The outputs of one row of tokens; `row` counts through all images.
template <typename T>
BIOATTN_INLINE void products_body(
    const T* tokens, const T* others, const T* bias, T* products, const WindowSizes& s, int64_t row, T outside) {
  const int64_t i = row % s.height;
  for (int64_t j = 0; j < s.width; ++j) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t token = (row * s.width + j) * s.heads + head;
      T* target = products + token * s.offsets;
      std::fill_n(target, s.offsets, outside);
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const int64_t other = ((row - i + y) * s.width + x) * s.heads + head;
        target[offset] = dot(tokens + token * s.channels, others + other * s.channels, s.channels);
        if (bias) target[offset] += bias[head * s.offsets + offset];
      });
    }
  }
}

template <typename T>
BIOATTN_INLINE void sums_body(
    const T* weights, const T* tokens, T* sums, const WindowSizes& s, int64_t row, bool transposed) {
  const int64_t i = row % s.height;
  for (int64_t j = 0; j < s.width; ++j) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t token = (row * s.width + j) * s.heads + head;
      T* target = sums + token * s.channels;
      std::fill_n(target, s.channels, T(0));
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const int64_t other = ((row - i + y) * s.width + x) * s.heads + head;
        // Seen from there, this token lies at the opposite offset.
        const int64_t weight = transposed ? other * s.offsets + s.offsets - 1 - offset : token * s.offsets + offset;
        add_scaled(target, weights[weight], tokens + other * s.channels, s.channels);
      });
    }
  }
}

// The bodies compiled for each instruction set: clones must be plain functions, so one for each dtype.
#define BIOATTN_FOR_DTYPE(T)                                                                                         \
  BIOATTN_CLONES void compute_products(                                                                              \
      const T* tokens, const T* others, const T* bias, T* products, const WindowSizes& s, int64_t row, T outside) {  \
    products_body(tokens, others, bias, products, s, row, outside);                                                  \
  }                                                                                                                  \
  BIOATTN_CLONES void compute_sums(                                                                                  \
      const T* weights, const T* tokens, T* sums, const WindowSizes& s, int64_t row, bool transposed) {              \
    sums_body(weights, tokens, sums, s, row, transposed);                                                            \
  }
BIOATTN_FOR_DTYPE(float)
BIOATTN_FOR_DTYPE(double)

template <typename Function>
void for_rows(const WindowSizes& s, const Function& function) {
  at::parallel_for(0, s.batch * s.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) function(row);
  });
}

}  // namespace

Tensor window_products_cpu(
    const Tensor& tokens, const Tensor& others, const Tensor& bias, int64_t offsets, double outside) {
  if (at::isReducedFloatingType(tokens.scalar_type())) {
    const Tensor float_bias = bias.defined() ? bias.to(at::kFloat) : bias;
    return window_products_cpu(tokens.to(at::kFloat), others.to(at::kFloat), float_bias, offsets, outside)
        .to(tokens.scalar_type());
  }
  const WindowSizes s(tokens, offsets);
  Tensor products = at::empty({s.batch, s.height, s.width, s.heads, s.offsets}, tokens.options());
  AT_DISPATCH_FLOATING_TYPES(tokens.scalar_type(), "sliding_window", [&] {
    const scalar_t *tokens_data = tokens.const_data_ptr<scalar_t>(), *others_data = others.const_data_ptr<scalar_t>();
    const scalar_t* bias_data = bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr;
    scalar_t* products_data = products.mutable_data_ptr<scalar_t>();
    for_rows(s, [&](int64_t row) {
      compute_products(tokens_data, others_data, bias_data, products_data, s, row, static_cast<scalar_t>(outside));
    });
  });
  return products;
}

Tensor window_sums_cpu(const Tensor& weights, const Tensor& tokens, bool transposed) {
  if (at::isReducedFloatingType(tokens.scalar_type()))
    return window_sums_cpu(weights.to(at::kFloat), tokens.to(at::kFloat), transposed).to(tokens.scalar_type());
  const WindowSizes s(tokens, weights.size(4));
  Tensor sums = at::empty(tokens.sizes(), tokens.options());
  AT_DISPATCH_FLOATING_TYPES(tokens.scalar_type(), "sliding_window", [&] {
    const scalar_t *weights_data = weights.const_data_ptr<scalar_t>(), *tokens_data = tokens.const_data_ptr<scalar_t>();
    scalar_t* sums_data = sums.mutable_data_ptr<scalar_t>();
    for_rows(s, [&](int64_t row) { compute_sums(weights_data, tokens_data, sums_data, s, row, transposed); });
  });
  return sums;
}

}  // namespace bioattn_mm
