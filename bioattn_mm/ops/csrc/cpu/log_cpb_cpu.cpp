// Table of the log-spaced position bias on the CPU: the hidden activations live in registers.

#include "../log_cpb.h"
#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

namespace bioattn_mm {
namespace {

using at::Tensor;

// The sums of some heads and columns stay in the first-level cache for a pass over the hidden units, and are loaded
// and stored once for some units at a time.
constexpr int64_t kHeads = 4, kColumns = 32, kSteps = 4;
constexpr int64_t kUnits = 64;  // hidden units that a task of the backward pass owns

// relu that keeps NaN
template <typename T>
BIOATTN_INLINE T relu(T x) {
  return x < 0 ? T(0) : x;
}

// One row of the table, for a group of heads. `horizontal` is (blocks of columns, hidden, kColumns); `weight` is
// (hidden, kHeads).
template <typename T>
BIOATTN_INLINE void row_body(
    const T* vertical, const T* horizontal, const T* weight, T* sums, int64_t hidden, int64_t padded_columns) {
  for (int64_t first = 0; first < padded_columns; first += kColumns) {
    T sum[kHeads][kColumns] = {};
    for (int64_t unit = 0; unit < hidden; unit += kSteps) {
      const T* source = horizontal + first * hidden + unit * kColumns;
      const T* offset = vertical + unit;
      const T* w = weight + unit * kHeads;
#pragma omp simd
      for (int64_t column = 0; column < kColumns; ++column) {
        for (int64_t step = 0; step < kSteps; ++step) {
          const T activation = relu(source[step * kColumns + column] + offset[step]);
          for (int64_t head = 0; head < kHeads; ++head) sum[head][column] += activation * w[step * kHeads + head];
        }
      }
    }
    for (int64_t head = 0; head < kHeads; ++head)
      std::copy_n(sum[head], kColumns, sums + head * padded_columns + first);
  }
}

// Gradients for kUnits hidden units. `grad_table` is (R, C, heads); the rest have `hidden` columns.
template <typename T>
BIOATTN_INLINE void units_body(
    const T* grad_table, const T* vertical, const T* horizontal, const T* weight, T* grad_vertical,
    T* grad_horizontal, T* grad_weight, int64_t rows, int64_t columns, int64_t heads, int64_t hidden) {
  for (int64_t row = 0; row < rows; ++row) {
    T grad_row[kUnits] = {};
    for (int64_t column = 0; column < columns; ++column) {
      const T* grad = grad_table + (row * columns + column) * heads;
      T activation[kUnits], grad_activation[kUnits] = {};
#pragma omp simd
      for (int64_t unit = 0; unit < kUnits; ++unit)
        activation[unit] = relu(vertical[row * hidden + unit] + horizontal[column * hidden + unit]);
      for (int64_t head = 0; head < heads; ++head) {
        const T* head_weight = weight + head * hidden;
        T* grad_head_weight = grad_weight + head * hidden;
        const T factor = grad[head];
#pragma omp simd
        for (int64_t unit = 0; unit < kUnits; ++unit) {
          grad_activation[unit] += head_weight[unit] * factor;
          grad_head_weight[unit] += activation[unit] * factor;
        }
      }
      T* grad_column = grad_horizontal + column * hidden;
#pragma omp simd
      for (int64_t unit = 0; unit < kUnits; ++unit) {
        const T masked = activation[unit] > 0 ? grad_activation[unit] : T(0);
        grad_row[unit] += masked;
        grad_column[unit] += masked;
      }
    }
    std::copy_n(grad_row, kUnits, grad_vertical + row * hidden);
  }
}

#define BIOATTN_FOR_DTYPE(T)                                                                                        \
  BIOATTN_CLONES void compute_row(                                                                                  \
      const T* vertical, const T* horizontal, const T* weight, T* sums, int64_t hidden, int64_t padded_columns) {   \
    row_body(vertical, horizontal, weight, sums, hidden, padded_columns);                                           \
  }                                                                                                                 \
  BIOATTN_CLONES void compute_unit_gradients(                                                                       \
      const T* grad_table, const T* vertical, const T* horizontal, const T* weight, T* grad_vertical,               \
      T* grad_horizontal, T* grad_weight, int64_t rows, int64_t columns, int64_t heads, int64_t hidden) {           \
    units_body(                                                                                                     \
        grad_table, vertical, horizontal, weight, grad_vertical, grad_horizontal, grad_weight, rows, columns, heads, \
        hidden);                                                                                                    \
  }
BIOATTN_FOR_DTYPE(float)
BIOATTN_FOR_DTYPE(double)

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

template <typename T>
void forward(const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor& bias, Tensor& table) {
  const int64_t rows = vertical.size(0), columns = horizontal.size(0), heads = weight.size(0);
  const int64_t padded_columns = round_up(columns, kColumns), groups = round_up(heads, kHeads) / kHeads;
  // Hidden units of weight zero fill the last step.
  const int64_t hidden = round_up(vertical.size(1), kSteps), filled = hidden - vertical.size(1);
  const Tensor padded_vertical = at::constant_pad_nd(vertical, {0, filled}).contiguous();
  const Tensor blocks = at::constant_pad_nd(horizontal, {0, filled, 0, padded_columns - columns})
                            .view({padded_columns / kColumns, kColumns, hidden})
                            .transpose(1, 2)
                            .contiguous();
  const Tensor grouped = at::constant_pad_nd(weight, {0, filled, 0, groups * kHeads - heads})
                             .view({groups, kHeads, hidden})
                             .transpose(1, 2)
                             .contiguous();
  const T *vertical_data = padded_vertical.const_data_ptr<T>(), *horizontal_data = blocks.const_data_ptr<T>();
  const T *weight_data = grouped.const_data_ptr<T>(), *bias_data = bias.const_data_ptr<T>();
  T* table_data = table.mutable_data_ptr<T>();
  at::parallel_for(0, rows * groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> sums(kHeads * padded_columns);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / groups, first_head = task % groups * kHeads;
      compute_row(
          vertical_data + row * hidden, horizontal_data, weight_data + first_head * hidden, sums.data(), hidden,
          padded_columns);
      for (int64_t head = first_head; head < std::min(heads, first_head + kHeads); ++head)
        for (int64_t column = 0; column < columns; ++column)
          table_data[(head * rows + row) * columns + column] =
              sums[(head - first_head) * padded_columns + column] + bias_data[head];
    }
  });
}

template <typename T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  const int64_t rows = vertical.size(0), columns = horizontal.size(0), heads = weight.size(0);
  const int64_t hidden = vertical.size(1), padded = round_up(hidden, kUnits);
  const auto pad = [&](const Tensor& tensor) { return at::constant_pad_nd(tensor, {0, padded - hidden}).contiguous(); };
  const Tensor heads_last = grad_table.permute({1, 2, 0}).contiguous();
  const Tensor padded_vertical = pad(vertical), padded_horizontal = pad(horizontal), padded_weight = pad(weight);
  Tensor grad_vertical = at::zeros_like(padded_vertical), grad_horizontal = at::zeros_like(padded_horizontal);
  Tensor grad_weight = at::zeros_like(padded_weight);
  const T* grad_data = heads_last.const_data_ptr<T>();
  const T *vertical_data = padded_vertical.const_data_ptr<T>(), *weight_data = padded_weight.const_data_ptr<T>();
  const T* horizontal_data = padded_horizontal.const_data_ptr<T>();
  T *grad_vertical_data = grad_vertical.mutable_data_ptr<T>(), *grad_weight_data = grad_weight.mutable_data_ptr<T>();
  T* grad_horizontal_data = grad_horizontal.mutable_data_ptr<T>();
  // A task owns its hidden units in every gradient, so the sums are the same for any number of threads.
  at::parallel_for(0, padded / kUnits, 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin * kUnits; unit < end * kUnits; unit += kUnits)
      compute_unit_gradients(
          grad_data, vertical_data + unit, horizontal_data + unit, weight_data + unit, grad_vertical_data + unit,
          grad_horizontal_data + unit, grad_weight_data + unit, rows, columns, heads, padded);
  });
  const auto trim = [&](const Tensor& tensor) { return tensor.narrow(1, 0, hidden).contiguous(); };
  return {trim(grad_vertical), trim(grad_horizontal), trim(grad_weight)};
}

}  // namespace

Tensor log_cpb_table_forward_cpu(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor& bias) {
  Tensor table = at::empty({weight.size(0), vertical.size(0), horizontal.size(0)}, vertical.options());
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table", [&] {
    forward<scalar_t>(vertical, horizontal, weight, bias, table);
  });
  return table;
}

std::tuple<Tensor, Tensor, Tensor> log_cpb_table_backward_cpu(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  std::tuple<Tensor, Tensor, Tensor> gradients;
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table_backward", [&] {
    gradients = backward<scalar_t>(grad_table, vertical, horizontal, weight);
  });
  return gradients;
}

}  // namespace bioattn_mm
