// GELU and adaptive average pooling on the CPU in one pass; the lanes of a vector are neighbouring channels.
#pragma once

#include "gelu.h"

namespace bioattn_mm::BIOATTN_ISA::gelu_pool {
namespace {

// An axis in cells: cell u has the indices from floor(u * length / cells) to before ceil((u + 1) * length / cells).
struct Axis {
  int64_t length, cells;

  int64_t begin(int64_t cell) const { return cell * length / cells; }
  int64_t end(int64_t cell) const { return divide_up((cell + 1) * length, cells); }
  int64_t size(int64_t cell) const { return end(cell) - begin(cell); }
  Axis transposed() const { return {cells, length}; }  // gives the cells that an index is in
};

// The sizes of tokens (B, H, W, C) and of the pooled tokens (B, Ph, Pw, C).
struct Sizes {
  int64_t channels, stride;  // from token to token of x
  Axis rows, columns;
};

template <typename Data>
struct Pooling {
  Sizes s;
  const Data *x, *grad_output;  // the tokens of all images
  Data *output, *grad_x;
  const Arithmetic<Data>* inverse_sizes;  // those of the cells' rows, then those of their columns
  int64_t begin, end;                     // cells, or rows of tokens, of all images
};

template <typename Data>
BIOATTN_KERNEL void pool(const Pooling<Data> p) {
  using T = Arithmetic<Data>;
  const Axis rows = p.s.rows, columns = p.s.columns;
  for (int64_t cell = p.begin; cell < p.end; ++cell) {
    const int64_t image = cell / columns.cells / rows.cells, u = cell / columns.cells % rows.cells;
    const int64_t v = cell % columns.cells, left = columns.begin(v), number = columns.size(v);
    const T factor = p.inverse_sizes[u] * p.inverse_sizes[rows.cells + v];
    for_vectors<T>(p.s.channels, [&](int64_t c) __attribute__((always_inline)) {
      Vector<T> sum = {};
      for (int64_t i = rows.begin(u); i < rows.end(u); ++i) {
        const Data* x = p.x + ((image * rows.length + i) * columns.length + left) * p.s.stride + c;
        for (int64_t j = 0; j < number; ++j) sum += gelu(load(x + j * p.s.stride));
      }
      store(p.output + cell * p.s.channels + c, Vector<T>(sum * factor));
    });
  }
}

template <typename Data>
BIOATTN_KERNEL void differentiate_pool(const Pooling<Data> p) {
  using T = Arithmetic<Data>;
  const Axis rows = p.s.rows, columns = p.s.columns, cells_of_row = rows.transposed(),
             cells_of_column = columns.transposed();
  for (int64_t row = p.begin; row < p.end; ++row) {
    const int64_t image = row / rows.length, i = row % rows.length;
    const int64_t top = cells_of_row.begin(i), bottom = cells_of_row.end(i);
    for (int64_t j = 0; j < columns.length; ++j) {
      const int64_t token = row * columns.length + j;
      const int64_t left = cells_of_column.begin(j), right = cells_of_column.end(j);
      for_vectors<T>(p.s.channels, [&](int64_t c) __attribute__((always_inline)) {
        Vector<T> gradient = {};
        for (int64_t u = top; u < bottom; ++u)
          for (int64_t v = left; v < right; ++v) {
            const int64_t cell = (image * rows.cells + u) * columns.cells + v;
            gradient += load(p.grad_output + cell * p.s.channels + c) *
                        (p.inverse_sizes[u] * p.inverse_sizes[rows.cells + v]);
          }
        const Vector<T> x = load(p.x + token * p.s.stride + c);
        Vector<T> cumulative, density;
        normal_distribution(x, cumulative, density);
        store(p.grad_x + token * p.s.channels + c, Vector<T>(gradient * (cumulative + x * density)));
      });
    }
  }
}

template <typename T>
std::vector<T> inverse_sizes(const Sizes& s) {
  std::vector<T> inverse;
  for (const Axis& axis : {s.rows, s.columns})
    for (int64_t cell = 0; cell < axis.cells; ++cell) inverse.push_back(T(1) / axis.size(cell));
  return inverse;
}

}  // namespace

Tensor forward(const StridedTokens& x, int64_t height, int64_t width) {
  const Sizes s{x.size(3), x.stride(2), {x.size(1), height}, {x.size(2), width}};
  const Tensor output = empty({x.size(0), height, width, s.channels}, x.options());
  const int64_t cells = x.size(0) * height * width, numbers = x.numel() / std::max(int64_t(1), cells);
  for_dtype(x, [&](auto data) {
    using Data = decltype(data);
    const auto inverse = inverse_sizes<Arithmetic<Data>>(s);
    parallel_for(0, cells, grain_of(numbers), [&](int64_t begin, int64_t end) {
      pool(Pooling<Data>{s, DataOf{x}, nullptr, DataOf{output}, nullptr, inverse.data(), begin, end});
    });
  });
  return output;
}

Tensor backward(const Tensor& grad_output, const StridedTokens& x) {
  const Sizes s{x.size(3), x.stride(2), {x.size(1), grad_output.size(1)}, {x.size(2), grad_output.size(2)}};
  const Tensor grad_x = empty_like(x);
  const int64_t rows = x.size(0) * x.size(1), numbers = x.size(2) * s.channels;
  for_dtype(x, [&](auto data) {
    using Data = decltype(data);
    const auto inverse = inverse_sizes<Arithmetic<Data>>(s);
    parallel_for(0, rows, grain_of(numbers), [&](int64_t begin, int64_t end) {
      differentiate_pool(
          Pooling<Data>{s, DataOf{x}, DataOf{grad_output}, nullptr, DataOf{grad_x}, inverse.data(), begin, end});
    });
  });
  return grad_x;
}

}  // namespace bioattn_mm::BIOATTN_ISA::gelu_pool
