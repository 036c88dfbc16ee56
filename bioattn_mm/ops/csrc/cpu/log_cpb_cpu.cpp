// Table of the log-spaced position bias on the CPU, without a hidden activation for each of its numbers.
//
// In a row of the table, a hidden unit is relu(offset + slope * x) of the column's coordinate x: in the order of the
// coordinates it is active in the last columns, if the slope is not negative, or in the first ones, and linear there. So
// the columns need only sums of offsets and of slopes, times the weights, over the units that are active in them: each
// unit is added where its columns end, and sums over these places give the columns. In the backward pass each unit takes
// the sums of the gradients of its columns in the same way. A row costs hidden + columns steps for all heads, not
// hidden * columns.

#include "../log_cpb.h"
#include "vectors.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace bioattn_mm {
namespace {

using at::Tensor;

// Heads are computed in groups: their numbers are neighbours in memory, in vectors of 4, 8 or 16.
constexpr int64_t kMostHeads = 16;
int64_t lanes_for(int64_t heads) { return heads <= 4 ? 4 : heads <= 8 ? 8
                                                                      : kMostHeads; }
// Units of which the active columns are counted at the same time.
constexpr int64_t kVectors = 4;
// The backward pass adds up so many blocks of rows one by one: the sums are the same for any number of threads.
constexpr int64_t kRowBlocks = 16;

template <typename T, int64_t kHeads>
struct HeadsOf {
  typedef T type __attribute__((vector_size(kHeads * sizeof(T)), aligned(alignof(T)), may_alias));
};

// A row of the table for one group of heads. A place says how many columns a unit is active in: the last ones for places
// 0 to `columns`, the first ones for those that follow.
template <typename T>
struct Row {
  int64_t hidden, columns, heads;  // hidden units padded to whole vectors, columns, 4, 8 or 16 heads
  const T *offsets, *slopes;       // (hidden)
  const T* coordinates;            // (columns), ascending
  int32_t* places;                 // (hidden)
  const T* weight;                 // (hidden, heads)
  T* sums;                         // (2 * (columns + 1), 2, heads): room for sums of places, of values and slopes
  T* table;                        // (columns, heads)
};

// The gradients of one row; of the sums over rows that the gradients of the parameters consist of.
template <typename T>
struct RowGradient : Row<T> {
  const T* grad_table;  // (columns, heads)
  const T* vertical;    // coordinate of the row
  T* unit_sums;         // (hidden, 3, heads): of the gradients of a unit's columns, times the row's coordinate, times
                        // those of the columns
};

template <typename T>
BIOATTN_INLINE void find_places(const Row<T>& row) {
  using Integers = decltype(Vector<T>{} > Vector<T>{});
  constexpr int64_t lanes = kLanes<T>;
  for (int64_t first = 0; first < row.hidden; first += kVectors * lanes) {
    Vector<T> offset[kVectors], slope[kVectors];
    Integers number[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      offset[v] = load(row.offsets + first + v * lanes), slope[v] = load(row.slopes + first + v * lanes);
      number[v] = Integers{};
    }
    for (int64_t column = 0; column < row.columns; ++column) {
      const T x = row.coordinates[column];
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) number[v] -= offset[v] + slope[v] * x > T(0);
    }
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      // A unit of NaN reaches all columns.
      const Vector<T> value = offset[v] + slope[v];
      const Integers all = Integers{} + static_cast<int32_t>(row.columns);
      number[v] = value == value ? number[v] : all;
      number[v] += slope[v] < T(0) ? all + 1 : Integers{};
      for (int64_t lane = 0; lane < lanes; ++lane) row.places[first + v * lanes + lane] = number[v][lane];
    }
  }
}

template <int64_t kHeads, typename T>
BIOATTN_INLINE void compute_row_of_heads(const Row<T>& row) {
  using Heads = typename HeadsOf<T, kHeads>::type;
  Heads* sums = reinterpret_cast<Heads*>(row.sums);
  const Heads* weights = reinterpret_cast<const Heads*>(row.weight);
  std::fill_n(sums, 4 * (row.columns + 1), Heads{});
  for (int64_t unit = 0; unit < row.hidden; ++unit) {
    Heads* sum = sums + 2 * row.places[unit];
    sum[0] += weights[unit] * row.offsets[unit];
    sum[1] += weights[unit] * row.slopes[unit];
  }
  // Column c is among the last k for k >= columns - c, and among the first k for k > c.
  Heads *last = sums, *first = sums + 2 * (row.columns + 1);
  for (int64_t k = 2 * row.columns - 1; k >= 2; --k) last[k] += last[k + 2], first[k] += first[k + 2];
  Heads* table = reinterpret_cast<Heads*>(row.table);
  for (int64_t c = 0; c < row.columns; ++c) {
    const Heads *of_last = last + 2 * (row.columns - c), *of_first = first + 2 * (c + 1);
    table[c] = (of_last[0] + of_first[0]) + (of_last[1] + of_first[1]) * row.coordinates[c];
  }
}

template <int64_t kHeads, typename T>
BIOATTN_INLINE void differentiate_row_of_heads(const RowGradient<T>& row) {
  using Heads = typename HeadsOf<T, kHeads>::type;
  const Heads* grad = reinterpret_cast<const Heads*>(row.grad_table);
  Heads *last = reinterpret_cast<Heads*>(row.sums), *first = last + 2 * (row.columns + 1);
  last[0] = last[1] = first[0] = first[1] = Heads{};
  for (int64_t k = 0; k < row.columns; ++k) {
    const int64_t c = row.columns - 1 - k;
    last[2 * k + 2] = last[2 * k] + grad[c];
    last[2 * k + 3] = last[2 * k + 1] + grad[c] * row.coordinates[c];
    first[2 * k + 2] = first[2 * k] + grad[k];
    first[2 * k + 3] = first[2 * k + 1] + grad[k] * row.coordinates[k];
  }
  Heads* target = reinterpret_cast<Heads*>(row.unit_sums);
  const T vertical = *row.vertical;
  for (int64_t unit = 0; unit < row.hidden; ++unit, target += 3) {
    const Heads* sum = last + 2 * row.places[unit];
    target[0] += sum[0], target[1] += sum[0] * vertical, target[2] += sum[1];
  }
}

template <typename T>
BIOATTN_INLINE void compute_row_body(const Row<T>& row) {
  find_places(row);
  if (row.heads == 4) return compute_row_of_heads<4>(row);
  if (row.heads == 8) return compute_row_of_heads<8>(row);
  compute_row_of_heads<kMostHeads>(row);
}

template <typename T>
BIOATTN_INLINE void differentiate_row_body(const RowGradient<T>& row) {
  find_places(row);
  if (row.heads == 4) return differentiate_row_of_heads<4>(row);
  if (row.heads == 8) return differentiate_row_of_heads<8>(row);
  differentiate_row_of_heads<kMostHeads>(row);
}

BIOATTN_CLONE(compute_row, Row)
BIOATTN_CLONE(differentiate_row, RowGradient)

// What both passes compute of the inputs.
template <typename T>
struct Layers {
  Layers(
      const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
      const Tensor& weight)
      : rows(vertical.size(0)), columns(horizontal.size(0)), heads(weight.size(0)), lanes(lanes_for(heads)) {
    constexpr int64_t step = kVectors * kLanes<T>;
    groups = (heads + lanes - 1) / lanes;
    hidden = (weight.size(1) + step - 1) / step * step;
    const int64_t filled = hidden - weight.size(1);
    const auto pad = [&](const Tensor& tensor) { return at::constant_pad_nd(tensor, {0, filled}).contiguous(); };
    offsets = pad(at::addcmul(hidden_bias, vertical.unsqueeze(1), hidden_weight.select(1, 0)));
    slopes = pad(hidden_weight.select(1, 1));
    std::tie(coordinates, order) = horizontal.sort();
    grouped_weight = at::constant_pad_nd(weight, {0, filled, 0, groups * lanes - heads})
                         .view({groups, lanes, hidden})
                         .transpose(1, 2)
                         .contiguous();
  }

  Row<T> row(int64_t number, int64_t group, int32_t* places, T* sums, T* table) const {
    return {hidden, columns, lanes, offsets.const_data_ptr<T>() + number * hidden, slopes.const_data_ptr<T>(),
            coordinates.const_data_ptr<T>(), places,
            grouped_weight.const_data_ptr<T>() + group * hidden * lanes, sums, table};
  }

  int64_t room_for_sums() const { return 4 * (columns + 1) * lanes; }

  int64_t rows, columns, heads, hidden, lanes, groups;
  Tensor offsets, slopes;     // (R, hidden), (hidden) padded to whole vectors
  Tensor coordinates, order;  // (C), ascending, and where they are
  Tensor grouped_weight;      // (groups, hidden, lanes)
};

template <typename T>
void forward(const Layers<T>& layers, const Tensor& bias, Tensor& table) {
  const int64_t* order = layers.order.template const_data_ptr<int64_t>();
  const T* bias_data = bias.const_data_ptr<T>();
  T* table_data = table.mutable_data_ptr<T>();
  at::parallel_for(0, layers.rows * layers.groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> places(layers.hidden);
    std::vector<T> sums(layers.room_for_sums()), row_of_table(layers.columns * layers.lanes);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / layers.groups, group = task % layers.groups, first_head = group * layers.lanes;
      compute_row(layers.row(row, group, places.data(), sums.data(), row_of_table.data()));
      for (int64_t head = first_head; head < std::min(layers.heads, first_head + layers.lanes); ++head)
        for (int64_t c = 0; c < layers.columns; ++c)
          table_data[(head * layers.rows + row) * layers.columns + order[c]] =
              row_of_table[c * layers.lanes + head - first_head] + bias_data[head];
    }
  });
}

template <typename T>
LogCPBGradients backward(
    const Layers<T>& layers, const Tensor& grad_table, const Tensor& vertical, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  const int64_t blocks = std::min(layers.rows, kRowBlocks), lanes = layers.lanes, size = layers.hidden * 3 * lanes;
  const int64_t* order = layers.order.template const_data_ptr<int64_t>();
  const T *grad_data = grad_table.const_data_ptr<T>(), *vertical_data = vertical.const_data_ptr<T>();
  const Tensor unit_sums = at::empty({layers.groups, blocks, size}, weight.options());
  T* unit_sums_data = unit_sums.mutable_data_ptr<T>();
  at::parallel_for(0, layers.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> places(layers.hidden);
    std::vector<T> sums(layers.room_for_sums()), grad_row(layers.columns * lanes);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / blocks, block = task % blocks, first_head = group * lanes;
      std::fill_n(unit_sums_data + task * size, size, T(0));
      for (int64_t row = block * layers.rows / blocks; row < (block + 1) * layers.rows / blocks; ++row) {
        for (int64_t head = first_head; head < std::min(layers.heads, first_head + lanes); ++head)
          for (int64_t c = 0; c < layers.columns; ++c)
            grad_row[c * lanes + head - first_head] = grad_data[(head * layers.rows + row) * layers.columns + order[c]];
        differentiate_row(RowGradient<T>{
            layers.row(row, group, places.data(), sums.data(), nullptr), grad_row.data(), vertical_data + row,
            unit_sums_data + task * size});
      }
    }
  });
  // (heads, hidden, 3)
  const Tensor of_units = unit_sums.sum(1)
                              .view({layers.groups, layers.hidden, 3, lanes})
                              .permute({0, 3, 1, 2})
                              .flatten(0, 1)
                              .slice(0, 0, layers.heads)
                              .slice(1, 0, weight.size(1));
  const auto sum = [&](int64_t k) { return of_units.select(2, k); };
  const auto weighted = [&](int64_t k) { return (weight * sum(k)).sum(0); };
  return {
      at::stack({weighted(1), weighted(2)}, 1), weighted(0),
      sum(0) * hidden_bias + sum(1) * hidden_weight.select(1, 0) + sum(2) * hidden_weight.select(1, 1),
      grad_table.sum({1, 2})};
}

}  // namespace

Tensor log_cpb_table_forward_cpu(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  Tensor table = at::empty({weight.size(0), vertical.size(0), horizontal.size(0)}, vertical.options());
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table", [&] {
    // NaN in a weight reaches all columns, also those in which its unit is not active.
    const Tensor constant = bias + weight.sum(1) * 0;
    forward<scalar_t>({vertical, horizontal, hidden_weight, hidden_bias, weight}, constant, table);
  });
  return table;
}

LogCPBGradients log_cpb_table_backward_cpu(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  LogCPBGradients gradients;
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table_backward", [&] {
    gradients = backward<scalar_t>(
        {vertical, horizontal, hidden_weight, hidden_bias, weight}, grad_table.contiguous(), vertical.contiguous(),
        hidden_weight, hidden_bias, weight);
  });
  return gradients;
}

}  // namespace bioattn_mm
