// Table of the log-spaced position bias on the CPU: the hidden activations stay in registers.

#include "../log_cpb.h"
#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>

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
  const T* grad_table;                                                  // (R, C, heads)
  const T *rows_of_units, *columns_of_units;                            // (R, hidden), (C, hidden): terms of the first layer
  const T *vertical, *horizontal;                                       // (R), (C): coordinates
  const T* weight;                                                      // (heads, hidden)
  T *grad_vertical_weight, *grad_horizontal_weight, *grad_hidden_bias;  // (hidden)
  T* grad_weight;                                                       // (heads, hidden)
  int64_t rows, columns, heads, hidden, first;
};

template <typename T>
BIOATTN_INLINE void compute_unit_gradients_body(const Units<T>& u) {
  for (int64_t row = 0; row < u.rows; ++row) {
    const T* row_of_units = u.rows_of_units + row * u.hidden + u.first;
    // Sums over the columns of the gradients of what relu takes, as they are and multiplied by the coordinate.
    T sum[kUnits] = {}, sum_of_products[kUnits] = {};
    for (int64_t column = 0; column < u.columns; ++column) {
      const T* column_of_units = u.columns_of_units + column * u.hidden + u.first;
      const T* grad = u.grad_table + (row * u.columns + column) * u.heads;
      T activation[kUnits], grad_activation[kUnits] = {};
#pragma omp simd
      for (int64_t unit = 0; unit < kUnits; ++unit)
        activation[unit] = relu(row_of_units[unit] + column_of_units[unit]);
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
      const T coordinate = u.horizontal[column];
#pragma omp simd
      for (int64_t unit = 0; unit < kUnits; ++unit) {
        const T passed = activation[unit] > 0 ? grad_activation[unit] : T(0);
        sum[unit] += passed;
        sum_of_products[unit] += passed * coordinate;
      }
    }
    const T coordinate = u.vertical[row];
#pragma omp simd
    for (int64_t unit = 0; unit < kUnits; ++unit) {
      u.grad_hidden_bias[u.first + unit] += sum[unit];
      u.grad_vertical_weight[u.first + unit] += sum[unit] * coordinate;
      u.grad_horizontal_weight[u.first + unit] += sum_of_products[unit];
    }
  }
}

BIOATTN_CLONE(compute_row, Row)
BIOATTN_CLONE(compute_unit_gradients, Units)

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Terms of the hidden units, whose sum relu takes: (R, hidden) and (C, hidden).
Tensor rows_of_units(const Tensor& vertical, const Tensor& hidden_weight, const Tensor& hidden_bias) {
  return at::addcmul(hidden_bias, vertical.unsqueeze(1), hidden_weight.select(1, 0));
}

Tensor columns_of_units(const Tensor& horizontal, const Tensor& hidden_weight) {
  return at::outer(horizontal, hidden_weight.select(1, 1));
}

// `vertical` and `horizontal` are these terms.
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
LogCPBGradients backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  const int64_t rows = vertical.size(0), columns = horizontal.size(0), heads = weight.size(0);
  const int64_t hidden = weight.size(1), padded = round_up(hidden, kUnits);
  const auto pad = [&](const Tensor& tensor) { return at::constant_pad_nd(tensor, {0, padded - hidden}).contiguous(); };
  const Tensor heads_last = grad_table.permute({1, 2, 0}).contiguous();
  const Tensor padded_rows = pad(rows_of_units(vertical, hidden_weight, hidden_bias));
  const Tensor padded_columns = pad(columns_of_units(horizontal, hidden_weight)), padded_weight = pad(weight);
  Tensor of_hidden = at::zeros({3, padded}, weight.options()), grad_weight = at::zeros({heads, padded}, weight.options());
  T* of_hidden_data = of_hidden.mutable_data_ptr<T>();
  const Units<T> all{
      heads_last.const_data_ptr<T>(), padded_rows.const_data_ptr<T>(), padded_columns.const_data_ptr<T>(),
      vertical.const_data_ptr<T>(), horizontal.const_data_ptr<T>(), padded_weight.const_data_ptr<T>(),
      of_hidden_data, of_hidden_data + padded, of_hidden_data + 2 * padded, grad_weight.mutable_data_ptr<T>(),
      rows, columns, heads, padded, 0};
  // A task owns its hidden units in every gradient, so the sums are the same for any number of threads.
  at::parallel_for(0, padded / kUnits, 1, [&](int64_t begin, int64_t end) {
    Units<T> units = all;
    for (units.first = begin * kUnits; units.first < end * kUnits; units.first += kUnits) compute_unit_gradients(units);
  });
  const auto trim = [&](const Tensor& tensor) { return tensor.narrow(-1, 0, hidden).contiguous(); };
  return {
      trim(of_hidden.narrow(0, 0, 2)).t().contiguous(), trim(of_hidden.select(0, 2)), trim(grad_weight),
      grad_table.sum({1, 2})};
}

}  // namespace

Tensor log_cpb_table_forward_cpu(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  Tensor table = at::empty({weight.size(0), vertical.size(0), horizontal.size(0)}, vertical.options());
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table", [&] {
    forward<scalar_t>(
        rows_of_units(vertical, hidden_weight, hidden_bias), columns_of_units(horizontal, hidden_weight),
        weight.contiguous(), bias.contiguous(), table);
  });
  return table;
}

LogCPBGradients log_cpb_table_backward_cpu(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  LogCPBGradients gradients;
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table_backward", [&] {
    gradients = backward<scalar_t>(
        grad_table, vertical.contiguous(), horizontal.contiguous(), hidden_weight, hidden_bias, weight);
  });
  return gradients;
}

}  // namespace bioattn_mm
