// Table of the log-spaced position bias on the CPU: the hidden activations stay in registers.

#include "../log_cpb.h"
#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

namespace bioattn_mm {
namespace {

using at::Tensor;

// Sums of kHeads heads and kColumns columns stay in the first-level cache while all hidden units are added; they are
// loaded and stored once for kSteps units.
constexpr int64_t kHeads = 4, kColumns = 32, kSteps = 4;
constexpr int64_t kUnits = 64;  // hidden units of a task of the backward pass

// relu that keeps NaN
template <typename T>
BIOATTN_INLINE T relu(T x) {
  return x < 0 ? T(0) : x;
}

// A row of the table for one group of heads.
template <typename T>
struct Row {
  const T* vertical;    // (hidden)
  const T* horizontal;  // (blocks of columns, hidden, kColumns)
  const T* weight;      // (hidden, kHeads)
  T* sums;              // (kHeads, padded_columns)
  int64_t hidden, padded_columns;
};

template <typename T>
BIOATTN_INLINE void compute_row_body(const Row<T>& row) {
  for (int64_t first = 0; first < row.padded_columns; first += kColumns) {
    T sum[kHeads][kColumns] = {};
    for (int64_t unit = 0; unit < row.hidden; unit += kSteps) {
      const T* source = row.horizontal + first * row.hidden + unit * kColumns;
      const T* offset = row.vertical + unit;
      const T* w = row.weight + unit * kHeads;
#pragma omp simd
      for (int64_t column = 0; column < kColumns; ++column) {
        for (int64_t step = 0; step < kSteps; ++step) {
          const T activation = relu(source[step * kColumns + column] + offset[step]);
          for (int64_t head = 0; head < kHeads; ++head) sum[head][column] += activation * w[step * kHeads + head];
        }
      }
    }
    for (int64_t head = 0; head < kHeads; ++head)
      std::copy_n(sum[head], kColumns, row.sums + head * row.padded_columns + first);
  }
}

// The gradients of kUnits hidden units from `first`.
template <typename T>
struct Units {
  const T* grad_table;                               // (R, C, heads)
  const T *vertical, *horizontal, *weight;           // (R, hidden), (C, hidden), (heads, hidden)
  T *grad_vertical, *grad_horizontal, *grad_weight;  // likewise
  int64_t rows, columns, heads, hidden, first;
};

template <typename T>
BIOATTN_INLINE void compute_unit_gradients_body(const Units<T>& u) {
  for (int64_t row = 0; row < u.rows; ++row) {
    const T* vertical = u.vertical + row * u.hidden + u.first;
    T grad_row[kUnits] = {};
    for (int64_t column = 0; column < u.columns; ++column) {
      const T* horizontal = u.horizontal + column * u.hidden + u.first;
      const T* grad = u.grad_table + (row * u.columns + column) * u.heads;
      T activation[kUnits], grad_activation[kUnits] = {};
#pragma omp simd
      for (int64_t unit = 0; unit < kUnits; ++unit) activation[unit] = relu(vertical[unit] + horizontal[unit]);
      for (int64_t head = 0; head < u.heads; ++head) {
        const T* weight = u.weight + head * u.hidden + u.first;
        T* grad_weight = u.grad_weight + head * u.hidden + u.first;
        const T factor = grad[head];
#pragma omp simd
        for (int64_t unit = 0; unit < kUnits; ++unit) {
          grad_activation[unit] += weight[unit] * factor;
          grad_weight[unit] += activation[unit] * factor;
        }
      }
      T* grad_column = u.grad_horizontal + column * u.hidden + u.first;
#pragma omp simd
      for (int64_t unit = 0; unit < kUnits; ++unit) {
        const T masked = activation[unit] > 0 ? grad_activation[unit] : T(0);
        grad_row[unit] += masked;
        grad_column[unit] += masked;
      }
    }
    std::copy_n(grad_row, kUnits, u.grad_vertical + row * u.hidden + u.first);
  }
}

BIOATTN_CLONE(compute_row, Row)
BIOATTN_CLONE(compute_unit_gradients, Units)

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
      compute_row(Row<T>{
          vertical_data + row * hidden, horizontal_data, weight_data + first_head * hidden, sums.data(), hidden,
          padded_columns});
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
  const Units<T> all{
      heads_last.const_data_ptr<T>(), padded_vertical.const_data_ptr<T>(), padded_horizontal.const_data_ptr<T>(),
      padded_weight.const_data_ptr<T>(), grad_vertical.mutable_data_ptr<T>(), grad_horizontal.mutable_data_ptr<T>(),
      grad_weight.mutable_data_ptr<T>(), rows, columns, heads, padded, 0};
  // A task owns its hidden units in every gradient, so the sums are the same for any number of threads.
  at::parallel_for(0, padded / kUnits, 1, [&](int64_t begin, int64_t end) {
    Units<T> units = all;
    for (units.first = begin * kUnits; units.first < end * kUnits; units.first += kUnits) compute_unit_gradients(units);
  });
  const auto trim = [&](const Tensor& tensor) { return tensor.narrow(1, 0, hidden).contiguous(); };
  return {trim(grad_vertical), trim(grad_horizontal), trim(grad_weight)};
}

}  // namespace

Tensor log_cpb_table_forward_cpu(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor& bias) {
  Tensor table = at::empty({weight.size(0), vertical.size(0), horizontal.size(0)}, vertical.options());
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table", [&] {
    forward<scalar_t>(vertical.contiguous(), horizontal.contiguous(), weight.contiguous(), bias.contiguous(), table);
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
