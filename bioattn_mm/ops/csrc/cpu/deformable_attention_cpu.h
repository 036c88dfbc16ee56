// Multi-scale deformable attention on the CPU: sums of the rows of values around the sampling points.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA::deformable_attention {
namespace {

struct Level {
  int64_t first, height, width;  // of all tokens, the index of its first
};

template <typename T>
struct Sampling {
  int64_t tokens, queries, heads, channels, points;  // points of a level
  const Level *levels, *levels_end;
  const T *value, *locations, *weights, *grad_output;
  T *output, *grad_value, *grad_locations, *grad_weights;

  int64_t row(int64_t image, int64_t token, int64_t head) const {
    return ((image * tokens + token) * heads + head) * channels;
  }
};

// A sampling point, between four tokens: two above it, and two below.
template <typename T>
struct Point {
  Point(const Level& level, const T* location)
      : level(level), x(location[0] * level.width - T(0.5)), y(location[1] * level.height - T(0.5)) {
    // False for NaN, too.
    exists = x > -1 && y > -1 && x < level.width && y < level.height;
    if (!exists) return;
    left = static_cast<int64_t>(std::floor(x)), top = static_cast<int64_t>(std::floor(y));
    x -= left, y -= top;
  }

  // Calls function(corner, token) for those of the four that are inside of the level.
  template <typename Function>
  BIOATTN_INLINE void for_corners(const Function& function) const {
    for (int corner = 0; exists && corner < 4; ++corner) {
      const int64_t row = top + corner / 2, column = left + corner % 2;
      if (row >= 0 && row < level.height && column >= 0 && column < level.width)
        function(corner, level.first + row * level.width + column);
    }
  }

  T share(int corner) const { return (corner % 2 ? x : 1 - x) * (corner / 2 ? y : 1 - y); }

  const Level& level;
  T x, y;  // once it exists, from the upper left of the four
  int64_t left, top;
  bool exists;
};

// Adds up `number` rows from the channel c on, in kVectors vectors.
template <int kVectors, typename T>
BIOATTN_INLINE void add_rows(const T* const* rows, const T* factors, int64_t number, T* sum, int64_t c) {
  Vector<T> sums[kVectors] = {};
  for (int64_t i = 0; i < number; ++i)
    for (int v = 0; v < kVectors; ++v) sums[v] += load(rows[i] + c + v * kLanes<T>) * factors[i];
  for (int v = 0; v < kVectors; ++v) store(sum + c + v * kLanes<T>, sums[v]);
}

// The queries from `begin` to `end`, of all images.
template <typename T>
BIOATTN_KERNEL void sample(const Sampling<T> s, int64_t begin, int64_t end) {
  std::vector<const T*> rows((s.levels_end - s.levels) * s.points * 4);
  std::vector<T> factors(rows.size());
  for (int64_t index = begin * s.heads; index < end * s.heads; ++index) {
    const int64_t image = index / s.heads / s.queries, head = index % s.heads;
    int64_t number = 0, k = index * (s.levels_end - s.levels) * s.points;
    for (const Level* level = s.levels; level < s.levels_end; ++level)
      for (const int64_t last = k + s.points; k < last; ++k) {
        const Point<T> point(*level, s.locations + 2 * k);
        point.for_corners([&](int corner, int64_t token) {
          rows[number] = s.value + s.row(image, token, head);
          factors[number++] = point.share(corner) * s.weights[k];
        });
      }
    T* const sum = s.output + index * s.channels;
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

// A head of an image: no other thread adds to the gradients of its values.
template <typename T>
BIOATTN_KERNEL void differentiate(const Sampling<T> s, int64_t image, int64_t head) {
  for (int64_t query = 0; query < s.queries; ++query) {
    const int64_t index = (image * s.queries + query) * s.heads + head;
    const T* const grad = s.grad_output + index * s.channels;
    int64_t k = index * (s.levels_end - s.levels) * s.points;
    for (const Level* level = s.levels; level < s.levels_end; ++level)
      for (const int64_t last = k + s.points; k < last; ++k) {
        const Point<T> point(*level, s.locations + 2 * k);
        const T weight = s.weights[k];
        T products[4] = {};  // of the output's gradient with the four rows
        point.for_corners([&](int corner, int64_t token) {
          const int64_t row = s.row(image, token, head);
          const T factor = point.share(corner) * weight, *const value = s.value + row;
          T *const grad_value = s.grad_value + row, product = 0;
#pragma omp simd reduction(+ : product)
          for (int64_t c = 0; c < s.channels; ++c) {
            product += grad[c] * value[c];
            grad_value[c] += grad[c] * factor;
          }
          products[corner] = product;
        });
        const T x = point.exists ? point.x : 0, y = point.exists ? point.y : 0;
        const auto between = [](T first, T second, T share) { return first + share * (second - first); };
        const T above = between(products[0], products[1], x), below = between(products[2], products[3], x);
        s.grad_weights[k] = between(above, below, y);
        s.grad_locations[2 * k] =
            weight * level->width * between(products[1] - products[0], products[3] - products[2], y);
        s.grad_locations[2 * k + 1] = weight * level->height * (below - above);
      }
  }
}

std::vector<Level> levels_of(const Tensor& shapes, int64_t tokens) {
  std::vector<Level> levels;
  const int64_t* const sizes = DataOf{shapes};
  int64_t first = 0;
  for (int64_t level = 0; level < shapes.size(0); ++level) {
    levels.push_back({first, sizes[2 * level], sizes[2 * level + 1]});
    check_value(
        levels.back().height >= 0 && levels.back().width >= 0 &&
            (!levels.back().width || levels.back().height <= (tokens - first) / levels.back().width),
        "deformable_attention: the levels of shapes must have the ", tokens, " tokens of value together, got more");
    first += levels.back().height * levels.back().width;
  }
  check_value(
      first == tokens, "deformable_attention: the levels of shapes must have the ", tokens,
      " tokens of value together, got ", first);
  return levels;
}

template <typename T>
Sampling<T> sampling_of(
    const std::vector<Level>& levels, const Tensor& value, const Tensor& locations, const Tensor& weights) {
  Sampling<T> s = {value.size(1), weights.size(1), value.size(2), value.size(3), weights.size(4)};
  s.levels = levels.data(), s.levels_end = levels.data() + levels.size();
  s.value = DataOf{value}, s.locations = DataOf{locations}, s.weights = DataOf{weights};
  return s;
}

}  // namespace

Tensor forward(const Tensor& values, const Tensor& shapes, const Tensor& locations, const Tensor& weights) {
  const std::vector<Level> levels = levels_of(shapes, values.size(1));
  const Tensor value = at_least_float(values);
  const Tensor output = empty({value.size(0), weights.size(1), value.size(2), value.size(3)}, value.options());
  dispatch<float, double>(value.scalar_type(), [&](auto zero) {
    auto s = sampling_of<decltype(zero)>(levels, value, locations, weights);
    s.output = DataOf{output};
    const int64_t queries = value.size(0) * s.queries;
    const int64_t work = weights.numel() / std::max(queries, int64_t(1)) * 4 * s.channels;
    parallel_for(0, queries, divide_up(kGrain, std::max(work, int64_t(1))), [&](int64_t begin, int64_t end) {
      sample(s, begin, end);
    });
  });
  return output.to(values.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& values, const Tensor& shapes, const Tensor& locations,
    const Tensor& weights) {
  const std::vector<Level> levels = levels_of(shapes, values.size(1));
  const Tensor value = at_least_float(values), grad = at_least_float(grad_output);
  const Tensor grad_value = zeros_like(value), grad_locations = empty_like(locations),
               grad_weights = empty_like(weights);
  dispatch<float, double>(value.scalar_type(), [&](auto zero) {
    auto s = sampling_of<decltype(zero)>(levels, value, locations, weights);
    s.grad_output = DataOf{grad}, s.grad_value = DataOf{grad_value};
    s.grad_locations = DataOf{grad_locations}, s.grad_weights = DataOf{grad_weights};
    parallel_for(0, value.size(0) * s.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) differentiate(s, i / s.heads, i % s.heads);
    });
  });
  return {grad_value.to(values.scalar_type()), grad_locations, grad_weights};
}

}  // namespace bioattn_mm::BIOATTN_ISA::deformable_attention
