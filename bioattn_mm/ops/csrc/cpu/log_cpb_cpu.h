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

// Both passes of one MLP. Arrays over the hidden units have the layouts that the kernels read, padded to whole
// vectors.
template <typename T>
struct Layers {
  Layers(
      const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
      const Tensor& weight)
      : rows(vertical.size(0)), columns(horizontal.size(0)), heads(weight.size(0)), units(weight.size(1)) {
    of_rows = DataOf{vertical}, first_layer = DataOf{hidden_weight}, first_bias = DataOf{hidden_bias};
    second_layer = DataOf{weight};
    std::vector<T> row_slope(units);
    for (int64_t unit = 0; unit < units; ++unit)
      row_slope[unit] = first_layer[2 * unit], slopes[unit] = first_layer[2 * unit + 1];
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t unit = 0; unit < units; ++unit)
        offsets[row * hidden + unit] = first_bias[unit] + of_rows[row] * row_slope[unit];
    for (int64_t unit = 0; unit < units; ++unit)
      for (int64_t head = 0; head < heads; ++head)
        grouped_weight[(head / group_heads * hidden + unit) * group_heads + head % group_heads] =
            second_layer[head * units + unit];
    std::iota(order.begin(), order.end(), 0);
    const T* of_columns = DataOf{horizontal};
    // NaN is sorted behind all other coordinates.
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return of_columns[a] < of_columns[b] || (std::isnan(of_columns[b]) && !std::isnan(of_columns[a]));
    });
    for (int64_t c = 0; c < columns; ++c) coordinates[c] = of_columns[order[c]];
  }

  Row<T> row(int64_t number, int64_t group, int32_t* places, T* sums, T* table) const {
    const T *offset = offsets.data() + number * hidden,
            *group_weight = grouped_weight.data() + group * hidden * group_heads;
    return {hidden, columns,      group_heads, offset, slopes.data(), coordinates.data(),
            places, group_weight, sums,        table};
  }

  int64_t size_of_sums() const { return 4 * (columns + 1) * group_heads; }

  void forward(const Tensor& bias, const Tensor& table) const {
    T* table_data = DataOf{table};
    // NaN in a weight reaches all columns, also those in which its unit is not active.
    std::vector<T> constants(bias.const_data_ptr<T>(), bias.const_data_ptr<T>() + heads);
    for (int64_t k = 0; k < heads * units; ++k) constants[k / units] += 0 * second_layer[k];
    parallel_for(0, rows * groups, 1, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> places(hidden);
      std::vector<T> sums(size_of_sums()), row_of_table(columns * group_heads);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t number = task / groups, group = task % groups, first_head = group * group_heads;
        compute_row(row(number, group, places.data(), sums.data(), row_of_table.data()));
        for (int64_t head = first_head; head < std::min(heads, first_head + group_heads); ++head)
          for (int64_t c = 0; c < columns; ++c)
            table_data[(head * rows + number) * columns + order[c]] =
                row_of_table[c * group_heads + head - first_head] + constants[head];
      }
    });
  }

  // Adds to `grad_hidden_weight` and `grad_hidden_bias`, and sets `grad_weight`.
  void backward(
      const Tensor& grad_table, const Tensor& grad_hidden_weight, const Tensor& grad_hidden_bias,
      const Tensor& grad_weight) const {
    const int64_t blocks = std::clamp(rows / kRowsOfBlock, int64_t(1), kRowBlocks), size = hidden * 3 * group_heads;
    const T* grad_data = DataOf{grad_table};
    Buffer<T> unit_sums(groups * blocks * size);
    parallel_for(0, groups * blocks, 1, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> places(hidden);
      std::vector<T> sums(size_of_sums()), grad_row(columns * group_heads);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / blocks, block = task % blocks, first_head = group * group_heads;
        for (int64_t number = block * rows / blocks; number < (block + 1) * rows / blocks; ++number) {
          for (int64_t head = first_head; head < std::min(heads, first_head + group_heads); ++head)
            for (int64_t c = 0; c < columns; ++c)
              grad_row[c * group_heads + head - first_head] = grad_data[(head * rows + number) * columns + order[c]];
          differentiate_row(
              RowGradient<T>{
                  row(number, group, places.data(), sums.data(), nullptr), grad_row.data(), of_rows + number,
                  unit_sums.data() + task * size});
        }
      }
    });
    // The sums of all blocks are added to those of the first, in order.
    for (int64_t group = 0; group < groups; ++group) {
      T* total = unit_sums.data() + group * blocks * size;
      for (int64_t block = 1; block < blocks; ++block) add_scaled(total, T(1), total + block * size, size);
    }
    T *grad_first = DataOf{grad_hidden_weight}, *grad_bias = DataOf{grad_hidden_bias},
      *grad_second = DataOf{grad_weight};
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t unit = 0; unit < units; ++unit) {
        T sum[3];
        for (int64_t k = 0; k < 3; ++k)
          sum[k] = unit_sums[head / group_heads * blocks * size + (unit * 3 + k) * group_heads + head % group_heads];
        const int64_t index = head * units + unit;
        grad_second[index] =
            sum[0] * first_bias[unit] + sum[1] * first_layer[2 * unit] + sum[2] * first_layer[2 * unit + 1];
        grad_bias[unit] += second_layer[index] * sum[0];
        grad_first[2 * unit] += second_layer[index] * sum[1];
        grad_first[2 * unit + 1] += second_layer[index] * sum[2];
      }
  }

  int64_t rows, columns, heads, units;
  int64_t group_heads = group_size(heads), groups = divide_up(heads, group_heads);
  int64_t hidden = round_up(units, kVectors* kLanes<T>);
  const T *of_rows, *first_layer, *first_bias, *second_layer;
  Buffer<T> offsets = Buffer<T>(rows * hidden), slopes = Buffer<T>(hidden);
  Buffer<T> coordinates = Buffer<T>(columns);                           // ascending
  std::vector<int64_t> order = std::vector<int64_t>(columns);           // the indices of the columns in this order
  Buffer<T> grouped_weight = Buffer<T>(groups * hidden * group_heads);  // (groups, hidden, group_heads)
};

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
    for_each_mlp(weight, [&](const auto& of) {
      const Layers<decltype(zero)> layers(vertical, horizontal, of(hidden_weight), of(hidden_bias), of(weight));
      layers.forward(of(bias), of(table));
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
    for_each_mlp(weight, [&](const auto& of) {
      const Layers<decltype(zero)> layers(vertical, horizontal, of(hidden_weight), of(hidden_bias), of(weight));
      layers.backward(of(grad_table), of(grad_hidden_weight), of(grad_hidden_bias), of(grad_weight));
    });
  });
  return {grad_hidden_weight, grad_hidden_bias, grad_weight, grad_table.sum({-2, -1})};
}

}  // namespace bioattn_mm::BIOATTN_ISA::log_cpb
