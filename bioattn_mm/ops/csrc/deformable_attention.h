// Multi-scale deformable attention: bioattn_mm/ops/deformable_attention.py says what it computes.
#pragma once

#include "check.h"

namespace bioattn_mm {

#define BIOATTN_ON_BOTH C10_HOST_DEVICE inline __attribute__((always_inline))

template <typename T>
struct PointGradients {
  T weight, x, y;
};

// A sampling point of a level, between four tokens: two above it, and two below.
template <typename T>
struct SamplingPoint {
  BIOATTN_ON_BOTH SamplingPoint(int64_t first, int64_t height, int64_t width, const T* location)
      : first(first), height(height), width(width) {
    x = location[0] * width - T(0.5), y = location[1] * height - T(0.5);
    exists = x > -1 && y > -1 && x < width && y < height;  // false for NaN, too
    if (!exists) x = y = 0;
    left = static_cast<int64_t>(std::floor(x)), top = static_cast<int64_t>(std::floor(y));
    x -= left, y -= top;
  }

  // Calls function(corner, token) for those of the four that are inside of the level.
  template <typename Function>
  BIOATTN_ON_BOTH void for_corners(const Function& function) const {
    for (int corner = 0; exists && corner < 4; ++corner) {
      const int64_t row = top + corner / 2, column = left + corner % 2;
      if (row >= 0 && row < height && column >= 0 && column < width) function(corner, first + row * width + column);
    }
  }

  BIOATTN_ON_BOTH T share(int corner) const { return (corner % 2 ? x : 1 - x) * (corner / 2 ? y : 1 - y); }

  // The gradients of weight and location follow from the products of the output's gradient with the four rows.
  BIOATTN_ON_BOTH PointGradients<T> gradients(const T (&products)[4], T weight) const {
    const T above = products[1] - products[0], below = products[3] - products[2];
    const T first = products[0] + x * above, down = products[2] + x * below - first;
    return {first + y * down, weight * width * (above + y * (below - above)), weight * height * down};
  }

  int64_t first, height, width;  // of all tokens, the index of the level's first; the level's size
  T x, y;                        // from the upper left of the four
  int64_t left, top;
  bool exists;
};

// The kernels of both devices read these: values of T, and locations and weights in full precision, as sums are.
template <typename T>
struct Sampling {
  using Full = std::conditional_t<std::is_same_v<T, double>, double, float>;

  Sampling(const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights)
      : tokens(value.size(1)),
        queries(weights.size(1)),
        heads(value.size(2)),
        channels(value.size(3)),
        levels(weights.size(3)),
        points(weights.size(4)),
        shapes(DataOf{shapes}),
        value(DataOf{value}),
        locations(DataOf{locations}),
        weights(DataOf{weights}) {}

  // Whether the levels have the tokens of value together.
  BIOATTN_ON_BOTH bool fits() const {
    int64_t first = 0;
    for (const int64_t *size = shapes, *end = shapes + 2 * levels; size < end; first += size[0] * size[1], size += 2)
      if (size[0] < 0 || size[1] < 0 || double(size[0]) * double(size[1]) > tokens - first) return false;
    return first == tokens;
  }

  // The values of the head and the image of output `index` begin so many elements after the first of all values.
  BIOATTN_ON_BOTH int64_t start(int64_t index) const {
    return (index / heads / queries * tokens * heads + index % heads) * channels;
  }

  // Calls function(k, point) for all sampling points of output `index`, which is (image, query, head).
  template <typename Function>
  BIOATTN_ON_BOTH void for_points(int64_t index, const Function& function) const {
    int64_t k = index * levels * points, first = 0;
    for (const int64_t *size = shapes, *end = shapes + 2 * levels; size < end; first += size[0] * size[1], size += 2)
      for (const int64_t last = k + points; k < last; ++k)
        function(k, SamplingPoint<Full>(first, size[0], size[1], locations + 2 * k));
  }

  int64_t tokens, queries, heads, channels, levels, points;  // points of a level
  const int64_t* shapes;
  const T* value;
  const Full *locations, *weights;
};

inline ArgumentChecks check_deformable_attention(
    const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights) {
  const ArgumentChecks arguments("deformable_attention", "value", value, 4, "(B, N, heads, d)");
  arguments.check("shapes", shapes, {-1, 2}, kLong);
  const ScalarType dtype = full_precision(value.scalar_type());
  const int64_t levels = shapes.size(0);
  arguments.check("weights", weights, {value.size(0), -1, value.size(2), levels, -1}, dtype);
  const std::vector<int64_t> points = {value.size(0), weights.size(1), value.size(2), levels, weights.size(4), 2};
  arguments.check("locations", locations, points, dtype);
  return arguments;
}

inline void check_deformable_attention_backward(
    const Tensor& grad_output, const Tensor& value, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights) {
  check_deformable_attention(value, shapes, locations, weights)
      .check("grad_output", grad_output, {value.size(0), weights.size(1), value.size(2), value.size(3)});
}

// The kernels of a device; the output is (B, Q, heads, d). Of half precision value, output and gradient of value are.
using DeformableForward =
    Tensor(const Tensor& value, const Tensor& shapes, const Tensor& locations, const Tensor& weights);
using DeformableBackward = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor& grad_output, const Tensor& value, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights);

DeformableForward deformable_attention_forward_cuda;
DeformableBackward deformable_attention_backward_cuda;

}  // namespace bioattn_mm
