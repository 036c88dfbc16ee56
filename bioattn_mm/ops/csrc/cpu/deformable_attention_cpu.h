// Multi-scale deformable attention on the CPU: sums of the rows of values around the sampling points.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA::deformable_attention {
namespace {

// Adds up `number` rows from the channel c on, in kVectors vectors.
template <int kVectors, typename T>
BIOATTN_INLINE void add_rows(const T* const* rows, const T* factors, int64_t number, T* sum, int64_t c) {
  Vector<T> sums[kVectors] = {};
  for (int64_t i = 0; i < number; ++i)
    for (int v = 0; v < kVectors; ++v) sums[v] += load(rows[i] + c + v * kLanes<T>) * factors[i];
  for (int v = 0; v < kVectors; ++v) store(sum + c + v * kLanes<T>, sums[v]);
}

// The outputs from `begin` to `end`.
template <typename T>
BIOATTN_KERNEL void sample(const Sampling<T> s, T* output, int64_t begin, int64_t end) {
  std::vector<const T*> rows(s.levels * s.points * 4);
  std::vector<T> factors(rows.size());
  for (int64_t index = begin; index < end; ++index) {
    const T* const value = s.value + s.start(index);
    int64_t number = 0;
    s.for_points(index, [&](int64_t k, const SamplingPoint<T>& point) {
      point.for_corners([&](int corner, int64_t token) {
        rows[number] = value + token * s.heads * s.channels;
        factors[number++] = point.share(corner) * s.weights[k];
      });
    });
    T* const sum = output + index * s.channels;
    int64_t c = 0;
    for (; c + 4 * kLanes<T> <= s.channels; c += 4 * kLanes<T>)
      add_rows<4>(rows.data(), factors.data(), number, sum, c);
    for (; c + kLanes<T> <= s.channels; c += kLanes<T>) add_rows<1>(rows.data(), factors.data(), number, sum, c);
    for (; c < s.channels; ++c) {
      sum[c] = 0;
      for (int64_t i = 0; i < number; ++i) sum[c] += rows[i][c] * factors[i];
    }
  }
}

template <typename T>
struct Gradients {
  const T* output;
  T *value, *locations, *weights;
};

// A head of an image: no other thread adds to the gradients of its values.
template <typename T>
BIOATTN_KERNEL void differentiate(const Sampling<T> s, const Gradients<T> g, int64_t image, int64_t head) {
  for (int64_t query = 0; query < s.queries; ++query) {
    const int64_t index = (image * s.queries + query) * s.heads + head, start = s.start(index);
    const T* const grad = g.output + index * s.channels;
    s.for_points(index, [&](int64_t k, const SamplingPoint<T>& point) {
      const T weight = s.weights[k];
      T products[4] = {};
      point.for_corners([&](int corner, int64_t token) {
        const int64_t row = start + token * s.heads * s.channels;
        const T factor = point.share(corner) * weight, *const value = s.value + row;
        T *const grad_value = g.value + row, product = 0;
#pragma omp simd reduction(+ : product)
        for (int64_t c = 0; c < s.channels; ++c) {
          product += grad[c] * value[c];
          grad_value[c] += grad[c] * factor;
        }
        products[corner] = product;
      });
      const PointGradients<T> gradients = point.gradients(products, weight);
      g.weights[k] = gradients.weight;
      g.locations[2 * k] = gradients.x, g.locations[2 * k + 1] = gradients.y;
    });
  }
}

// Calls function(sampling) for values of full precision.
template <typename Function>
void with_sampling(
    const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights,
    const Function& function) {
  dispatch<float, double>(value.scalar_type(), [&](auto zero) {
    const Sampling<decltype(zero)> s(value, shapes, locations, weights);
    check_value(
        s.fits(), "deformable_attention: the levels of shapes must have the ", s.tokens,
        " tokens of value together, got heights and widths ", text_of_sizes({s.shapes, size_t(2 * s.levels)}));
    function(s);
  });
}

}  // namespace

Tensor forward(const Tensor& values, const Tensor& shapes, const Tensor& locations, const Tensor& weights) {
  const Tensor value = at_least_float(values);
  const Tensor output = empty({value.size(0), weights.size(1), value.size(2), value.size(3)}, value.options());
  with_sampling(value, shapes, locations, weights, [&](const auto& s) {
    std::decay_t<decltype(*s.value)>* const sums = DataOf{output};
    const int64_t work = s.levels * s.points * 4 * s.channels;
    parallel_for(0, value.size(0) * s.queries * s.heads, grain_of(work), [&](int64_t begin, int64_t end) {
      sample(s, sums, begin, end);
    });
  });
  return output.to(values.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& values, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights) {
  const Tensor value = at_least_float(values), grad = at_least_float(grad_output);
  const Tensor grad_value = zeros_like(value), grad_locations = empty_like(locations),
               grad_weights = empty_like(weights);
  with_sampling(value, shapes, locations, weights, [&](const auto& s) {
    const Gradients<std::decay_t<decltype(*s.locations)>> g{
        DataOf{grad}, DataOf{grad_value}, DataOf{grad_locations}, DataOf{grad_weights}};
    parallel_for(0, value.size(0) * s.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) differentiate(s, g, i / s.heads, i % s.heads);
    });
  });
  return {grad_value.to(values.scalar_type()), grad_locations, grad_weights};
}

}  // namespace bioattn_mm::BIOATTN_ISA::deformable_attention
