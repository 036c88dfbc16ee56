// The table of the log-spaced position bias on the CPU, without the hidden activations of each element.
// A hidden unit is, in a row, relu(offset + slope * x) of the column's coordinate x: in the order of the coordinates
// it is active, and linear, in the last columns (slope >= 0) or in the first ones. So each unit is added at the
// column where it ends to be active, and running sums give the columns; the backward pass does the reverse. A row
// costs hidden + columns steps, not hidden * columns.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA::log_cpb {
namespace {

// Heads are computed in groups of 4, 8 or 16, whose elements are the lanes of a vector.
constexpr int64_t kMostHeads = 16;
int64_t group_size(int64_t heads) { return heads <= 4 ? 4 : heads <= 8 ? 8 : kMostHeads; }
// The number of vectors of units whose active columns are counted at the same time.
constexpr int64_t kVectors = 4;
// The rows of a block in the backward pass, and the most blocks: each has sums of its own, which are added in order.
constexpr int64_t kRowsOfBlock = 4, kRowBlocks = 16;

template <typename T, int64_t kHeads>
struct HeadsOf {
  typedef T type __attribute__((vector_size(kHeads * sizeof(T)), aligned(alignof(T)), may_alias));
};

// A row of the table for one group of heads. A unit's place says where it is active: places 0 to `columns` stand for
// that many last columns, and places columns + 1 + n for n first columns.
template <typename T>
struct Row {
  int64_t hidden, columns, heads;  // hidden units padded to whole vectors, columns, 4, 8 or 16 heads
  const T *offsets, *slopes;       // (hidden)
  const T* coordinates;            // (columns), ascending
  int32_t* places;                 // (hidden)
  const T* weight;                 // (hidden, heads)
  T* sums;   // (2 * (columns + 1), 2, heads): workspace for each place's sums of values and slopes
  T* table;  // (columns, heads)
};

// The gradients of one row, and the sums over rows that the gradients of the parameters consist of.
template <typename T>
struct RowGradient : Row<T> {
  const T* grad_table;  // (columns, heads)
  const T* vertical;    // coordinate of the row
  T* unit_sums;  // (hidden, 3, heads): the sum of the gradients of a unit's active columns, and the same of their
                 // products with the row's coordinate, and with those of the columns
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
BIOATTN_KERNEL void compute_row(const Row<T> row) {
  find_places(row);
  if (row.heads == 4) return compute_row_of_heads<4>(row);
  if (row.heads == 8) return compute_row_of_heads<8>(row);
  compute_row_of_heads<kMostHeads>(row);
}

template <typename T>
BIOATTN_KERNEL void differentiate_row(const RowGradient<T> row) {
  find_places(row);
  if (row.heads == 4) return differentiate_row_of_heads<4>(row);
  if (row.heads == 8) return differentiate_row_of_heads<8>(row);
  differentiate_row_of_heads<kMostHeads>(row);
}

// The inputs of both passes, in the layouts that the kernels read.
template <typename T>
struct Layers {
  Layers(
      const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
      const Tensor& weight)
      : rows(vertical.size(0)), columns(horizontal.size(0)), heads(weight.size(0)), group_heads(group_size(heads)) {
    constexpr int64_t step = kVectors * kLanes<T>;
    groups = divide_up(heads, group_heads);
    hidden = round_up(weight.size(1), step);
    const Options options = weight.options();
    offsets = zeros({rows, hidden}, options), slopes = zeros({hidden}, options);
    grouped_weight = zeros({groups, hidden, group_heads}, options), coordinates = empty({columns}, options);
    T *offset = offsets.mutable_data_ptr<T>(), *slope = slopes.mutable_data_ptr<T>();
    T *grouped = grouped_weight.mutable_data_ptr<T>(), *coordinate = coordinates.mutable_data_ptr<T>();
    const T *of_rows = vertical.const_data_ptr<T>(), *of_columns = horizontal.const_data_ptr<T>();
    const T *first_layer = hidden_weight.const_data_ptr<T>(), *first_bias = hidden_bias.const_data_ptr<T>();
    const T* second_layer = weight.const_data_ptr<T>();
    const int64_t units = weight.size(1);
    std::vector<T> row_slope(units);
    for (int64_t unit = 0; unit < units; ++unit)
      row_slope[unit] = first_layer[2 * unit], slope[unit] = first_layer[2 * unit + 1];
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t unit = 0; unit < units; ++unit)
        offset[row * hidden + unit] = first_bias[unit] + of_rows[row] * row_slope[unit];
    for (int64_t unit = 0; unit < units; ++unit)
      for (int64_t head = 0; head < heads; ++head)
        grouped[(head / group_heads * hidden + unit) * group_heads + head % group_heads] =
            second_layer[head * units + unit];
    order.resize(columns);
    std::iota(order.begin(), order.end(), 0);
    // NaN is sorted behind all other coordinates.
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return of_columns[a] < of_columns[b] || (std::isnan(of_columns[b]) && !std::isnan(of_columns[a]));
    });
    for (int64_t c = 0; c < columns; ++c) coordinate[c] = of_columns[order[c]];
  }

  Row<T> row(int64_t number, int64_t group, int32_t* places, T* sums, T* table) const {
    return {
        hidden,
        columns,
        group_heads,
        offsets.const_data_ptr<T>() + number * hidden,
        slopes.const_data_ptr<T>(),
        coordinates.const_data_ptr<T>(),
        places,
        grouped_weight.const_data_ptr<T>() + group * hidden * group_heads,
        sums,
        table};
  }

  int64_t size_of_sums() const { return 4 * (columns + 1) * group_heads; }

  int64_t rows, columns, heads, hidden, group_heads, groups;
  Tensor offsets, slopes;      // (R, hidden), (hidden) padded to whole vectors
  Tensor coordinates;          // (C), ascending
  std::vector<int64_t> order;  // the indices of the columns in this order
  Tensor grouped_weight;       // (groups, hidden, group_heads)
};

template <typename T>
void forward(const Layers<T>& layers, const Tensor& weight, const Tensor& bias, const Tensor& table) {
  const int64_t* order = layers.order.data();
  T* table_data = table.mutable_data_ptr<T>();
  // NaN in a weight reaches all columns, also those in which its unit is not active.
  std::vector<T> constants(bias.const_data_ptr<T>(), bias.const_data_ptr<T>() + layers.heads);
  const T* weights = weight.const_data_ptr<T>();
  for (int64_t k = 0; k < weight.numel(); ++k) constants[k / weight.size(1)] += 0 * weights[k];
  parallel_for(0, layers.rows * layers.groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> places(layers.hidden);
    std::vector<T> sums(layers.size_of_sums()), row_of_table(layers.columns * layers.group_heads);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / layers.groups, group = task % layers.groups, first_head = group * layers.group_heads;
      compute_row(layers.row(row, group, places.data(), sums.data(), row_of_table.data()));
      for (int64_t head = first_head; head < std::min(layers.heads, first_head + layers.group_heads); ++head)
        for (int64_t c = 0; c < layers.columns; ++c)
          table_data[(head * layers.rows + row) * layers.columns + order[c]] =
              row_of_table[c * layers.group_heads + head - first_head] + constants[head];
    }
  });
}

// Adds to `grad_hidden_weight` and `grad_hidden_bias`, and sets `grad_weight`.
template <typename T>
void backward(
    const Layers<T>& layers, const Tensor& grad_table, const Tensor& vertical, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight, const Tensor& grad_hidden_weight, const Tensor& grad_hidden_bias,
    const Tensor& grad_weight) {
  const int64_t blocks = std::clamp(layers.rows / kRowsOfBlock, int64_t(1), kRowBlocks);
  const int64_t group_heads = layers.group_heads, size = layers.hidden * 3 * group_heads;
  const int64_t* order = layers.order.data();
  const T *grad_data = grad_table.const_data_ptr<T>(), *vertical_data = vertical.const_data_ptr<T>();
  const Tensor unit_sums = empty({layers.groups, blocks, size}, weight.options());
  T* unit_sums_data = unit_sums.mutable_data_ptr<T>();
  parallel_for(0, layers.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> places(layers.hidden);
    std::vector<T> sums(layers.size_of_sums()), grad_row(layers.columns * group_heads);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / blocks, block = task % blocks, first_head = group * group_heads;
      std::fill_n(unit_sums_data + task * size, size, T(0));
      for (int64_t row = block * layers.rows / blocks; row < (block + 1) * layers.rows / blocks; ++row) {
        for (int64_t head = first_head; head < std::min(layers.heads, first_head + group_heads); ++head)
          for (int64_t c = 0; c < layers.columns; ++c)
            grad_row[c * group_heads + head - first_head] =
                grad_data[(head * layers.rows + row) * layers.columns + order[c]];
        differentiate_row(
            RowGradient<T>{
                layers.row(row, group, places.data(), sums.data(), nullptr), grad_row.data(), vertical_data + row,
                unit_sums_data + task * size});
      }
    }
  });
  // The sums of all blocks are added to those of the first, in order.
  for (int64_t group = 0; group < layers.groups; ++group) {
    T* total = unit_sums_data + group * blocks * size;
    for (int64_t block = 1; block < blocks; ++block) add_scaled(total, T(1), total + block * size, size);
  }
  const int64_t units = weight.size(1);
  const T *weights = weight.const_data_ptr<T>(), *first_layer = hidden_weight.const_data_ptr<T>();
  const T* first_bias = hidden_bias.const_data_ptr<T>();
  T *grad_first = grad_hidden_weight.mutable_data_ptr<T>(), *grad_bias = grad_hidden_bias.mutable_data_ptr<T>();
  T* grad_second = grad_weight.mutable_data_ptr<T>();
  for (int64_t head = 0; head < layers.heads; ++head)
    for (int64_t unit = 0; unit < units; ++unit) {
      T sum[3];
      for (int64_t k = 0; k < 3; ++k)
        sum[k] =
            unit_sums_data[head / group_heads * blocks * size + (unit * 3 + k) * group_heads + head % group_heads];
      const int64_t index = head * units + unit;
      grad_second[index] =
          sum[0] * first_bias[unit] + sum[1] * first_layer[2 * unit] + sum[2] * first_layer[2 * unit + 1];
      grad_bias[unit] += weights[index] * sum[0];
      grad_first[2 * unit] += weights[index] * sum[1], grad_first[2 * unit + 1] += weights[index] * sum[2];
    }
}

// Calls function(of) for each MLP. Where tensors have an axis of MLPs first, of(tensor) is the part of this one.
template <typename Function>
void for_each_mlp(const Tensor& weight, const Function& function) {
  const bool has_axis = weight.dim() == 3;
  for (int64_t mlp = 0; mlp < (has_axis ? weight.size(0) : 1); ++mlp)
    function([&](const Tensor& tensor) { return has_axis ? tensor.select(0, mlp) : tensor; });
}

}  // namespace

Tensor forward(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  const std::vector<int64_t> sizes{weight.size(-2), vertical.size(0), horizontal.size(0)};
  Tensor table = empty(sizes_of_mlps(weight, sizes), vertical.options());
  dispatch<float, double>(vertical.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    for_each_mlp(weight, [&](const auto& of) {
      const Layers<scalar_t> layers(vertical, horizontal, of(hidden_weight), of(hidden_bias), of(weight));
      forward(layers, of(weight), of(bias), of(table));
    });
  });
  return table;
}

LogCPBGradients backward(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  const Tensor grad_hidden_weight = zeros_like(hidden_weight), grad_hidden_bias = zeros_like(hidden_bias);
  const Tensor grad_weight = empty_like(weight);
  dispatch<float, double>(vertical.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    for_each_mlp(weight, [&](const auto& of) {
      const Layers<scalar_t> layers(vertical, horizontal, of(hidden_weight), of(hidden_bias), of(weight));
      backward(
          layers, of(grad_table), vertical, of(hidden_weight), of(hidden_bias), of(weight), of(grad_hidden_weight),
          of(grad_hidden_bias), of(grad_weight));
    });
  });
  return {grad_hidden_weight, grad_hidden_bias, grad_weight, grad_table.sum({-2, -1})};
}

}  // namespace bioattn_mm::BIOATTN_ISA::log_cpb
