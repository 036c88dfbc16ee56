// Table of the log-spaced position bias on a GPU: the hidden activations stay in registers. `parts_kernel` adds up
// the parameters' gradients over each row of a table, `gradients_kernel` over the rows, always in one order.

#include "log_cpb.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kHeads = 4;   // heads that share the computation of an activation
constexpr int kUnits = 64;  // hidden units that a block of the forward pass stages at a time

struct Sizes {
  // A row's parts of the gradients are (MLPs, rows, lines, units). The first lines are the gradients of the weight
  // for each head, the bias being the weight of one more unit of activation 1. The last two are sums of the gradients
  // of relu's inputs, as they are and times the column's coordinate.
  __host__ __device__ int lines() const { return heads + 2; }
  __host__ __device__ int units() const { return hidden + 1; }

  int mlps, rows, columns, hidden, heads;  // hidden units and heads of one MLP
};

// The elements of one group of heads, loaded at once.
template <typename T>
struct alignas(16) Group {
  T of_head[kHeads];
};

template <typename T>
struct Inputs {
  const T *vertical, *horizontal;        // (rows), (columns)
  const T *hidden_weight, *hidden_bias;  // (hidden, 2), (hidden)
  const T* weight;                       // (heads, hidden)

  // A hidden unit is relu of the sum of these two terms.
  __device__ __forceinline__ T of_row(int row, int unit) const {
    return vertical[row] * hidden_weight[2 * unit] + hidden_bias[unit];
  }
  __device__ __forceinline__ T of_column(int column, int unit) const {
    return horizontal[column] * hidden_weight[2 * unit + 1];
  }

  __device__ __forceinline__ Inputs of_mlp(int mlp, const Sizes& s) const {
    const int64_t units = int64_t(mlp) * s.hidden;
    return {vertical, horizontal, hidden_weight + 2 * units, hidden_bias + units, weight + units * s.heads};
  }
};

// relu that keeps NaN
template <typename T>
__device__ __forceinline__ T relu(T x) {
  return x < T(0) ? T(0) : x;
}

// A block computes kWarps rows, one a warp, and kWarpSize columns, one a lane, of a table for a group of heads.
template <typename T>
struct TableMemory {
  Group<T> weight[kUnits];
  T row[kWarps][kUnits];
  T column[kUnits][kWarpSize + 1];  // no two lanes that store a column have the same bank
};

template <typename T>
__global__ void __launch_bounds__(kThreads) table_kernel(const Inputs<T> all, const T* bias, T* tables, Sizes s) {
  auto& shared = *reinterpret_cast<TableMemory<T>*>(block_memory());
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int groups = divide_up(s.heads, kHeads), mlp = blockIdx.z / groups;
  const int first_column = blockIdx.x * kWarpSize, first_row = blockIdx.y * kWarps;
  const int first_head = blockIdx.z % groups * kHeads;
  const Inputs<T> inputs = all.of_mlp(mlp, s);
  T sum[kHeads] = {};
  for (int first = 0; first < s.hidden; first += kUnits) {
    // Neighbours in a warp load neighbours in memory: hidden units of one row, column or head.
    for (int i = threadIdx.x; i < kWarpSize * kUnits; i += kThreads) {
      const int unit = i % kUnits, column = i / kUnits;
      const bool exists = first_column + column < s.columns && first + unit < s.hidden;
      shared.column[unit][column] = exists ? inputs.of_column(first_column + column, first + unit) : T(0);
    }
    for (int i = threadIdx.x; i < kWarps * kUnits; i += kThreads) {
      const int unit = i % kUnits, row = i / kUnits;
      const bool exists = first_row + row < s.rows && first + unit < s.hidden;
      shared.row[row][unit] = exists ? inputs.of_row(first_row + row, first + unit) : T(0);
    }
    for (int i = threadIdx.x; i < kHeads * kUnits; i += kThreads) {
      const int unit = i % kUnits, head = first_head + i / kUnits;
      const bool exists = head < s.heads && first + unit < s.hidden;
      const T* const weight = inputs.weight + int64_t(head) * s.hidden + first;
      shared.weight[unit].of_head[i / kUnits] = exists ? weight[unit] : T(0);
    }
    __syncthreads();
#pragma unroll 8
    for (int unit = 0; unit < kUnits; ++unit) {
      const T activation = relu(shared.row[warp][unit] + shared.column[unit][lane]);
      const Group<T> w = shared.weight[unit];
#pragma unroll
      for (int head = 0; head < kHeads; ++head) sum[head] += activation * w.of_head[head];
    }
    __syncthreads();
  }
  const int row = first_row + warp, column = first_column + lane;
  if (row >= s.rows || column >= s.columns) return;
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const int head = first_head + k;
    if (head >= s.heads) continue;
    const int64_t index = int64_t(mlp) * s.heads + head;
    tables[(index * s.rows + row) * s.columns + column] = sum[k] + bias[index];
  }
}

// A warp has a row of the table, a lane a hidden unit. The block stages kWarpSize columns of kHeads heads at a time.
template <typename T>
struct PartsMemory {
  Group<T> grad_table[kWarps][kWarpSize];
  T coordinate[kWarpSize];
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    parts_kernel(const T* grad_tables, const Inputs<T> all, T* parts, Sizes s) {
  auto& shared = *reinterpret_cast<PartsMemory<T>*>(block_memory());
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int first_row = blockIdx.y * kWarps, row = first_row + warp, unit = blockIdx.x * kWarpSize + lane;
  const int mlp = blockIdx.z;
  const Inputs<T> inputs = all.of_mlp(mlp, s);
  const T* const grad_table = grad_tables + int64_t(mlp) * s.heads * s.rows * s.columns;
  const bool exists = row < s.rows && unit < s.hidden, is_stored = row < s.rows && unit < s.units();
  const T term = exists ? inputs.of_row(row, unit) : T(1);
  const T slope = exists ? inputs.hidden_weight[2 * unit + 1] : T(0);
  T* const part = parts + (int64_t(mlp) * s.rows + row) * s.lines() * s.units() + unit;
  T sum = 0, sum_of_products = 0;
  for (int first_head = 0; first_head < s.heads; first_head += kHeads) {
    T weight[kHeads], grad_weight[kHeads] = {};
#pragma unroll
    for (int k = 0; k < kHeads; ++k)
      weight[k] =
          exists && first_head + k < s.heads ? inputs.weight[int64_t(first_head + k) * s.hidden + unit] : T(0);
    for (int first = 0; first < s.columns; first += kWarpSize) {
      const int count = s.columns - first;
      for (int i = threadIdx.x; i < kWarps * kWarpSize * kHeads; i += kThreads) {
        const int column = i % kWarpSize, local = i / kWarpSize % kWarps, k = i / (kWarpSize * kWarps),
                  head = first_head + k;
        const bool inside = column < count && first_row + local < s.rows && head < s.heads;
        shared.grad_table[local][column].of_head[k] =
            inside ? grad_table[(int64_t(head) * s.rows + first_row + local) * s.columns + first + column] : T(0);
      }
      if (threadIdx.x < kWarpSize && lane < count) shared.coordinate[lane] = inputs.horizontal[first + lane];
      __syncthreads();
#pragma unroll 4
      for (int column = 0; column < kWarpSize && column < count; ++column) {
        const T coordinate = shared.coordinate[column];
        const T activation = relu(term + coordinate * slope);
        const Group<T> grad = shared.grad_table[warp][column];
        T grad_activation = 0;
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
          grad_activation += weight[k] * grad.of_head[k];
          grad_weight[k] += activation * grad.of_head[k];
        }
        const T passed = activation > T(0) ? grad_activation : T(0);
        sum += passed;
        sum_of_products += passed * coordinate;
      }
      __syncthreads();
    }
    for (int k = 0; k < kHeads; ++k)
      if (is_stored && first_head + k < s.heads) part[(first_head + k) * s.units()] = grad_weight[k];
  }
  if (!is_stored) return;
  part[s.heads * s.units()] = sum;
  part[(s.heads + 1) * s.units()] = sum_of_products;
}

template <typename T>
struct GradientsOf {
  T *hidden_weight, *hidden_bias;  // (hidden, 2), (hidden)
  T *weight, *bias;                // (heads, hidden), (heads)

  __device__ __forceinline__ GradientsOf of_mlp(int mlp, const Sizes& s) const {
    const int64_t units = int64_t(mlp) * s.hidden;
    return {hidden_weight + 2 * units, hidden_bias + units, weight + units * s.heads, bias + mlp * s.heads};
  }
};

// A block adds up a line of an MLP's parts over the rows, as it is and times the rows' coordinates.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const T* parts, const T* vertical, GradientsOf<T> all, Sizes s) {
  auto& shared = *reinterpret_cast<T(*)[2][kWarps][kWarpSize]>(block_memory());
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int line = blockIdx.y, unit = blockIdx.x * kWarpSize + lane, mlp = blockIdx.z;
  const GradientsOf<T> grad = all.of_mlp(mlp, s);
  T sum = 0, sum_of_products = 0;
#pragma unroll 4
  for (int row = warp; row < s.rows && unit < s.units(); row += kWarps) {
    const T part = parts[((int64_t(mlp) * s.rows + row) * s.lines() + line) * s.units() + unit];
    sum += part;
    sum_of_products += part * vertical[row];
  }
  shared[0][warp][lane] = sum;
  shared[1][warp][lane] = sum_of_products;
  __syncthreads();
  if (warp > 0 || unit >= s.units()) return;
  for (int other = 1; other < kWarps; ++other) {
    sum += shared[0][other][lane];
    sum_of_products += shared[1][other][lane];
  }
  if (unit == s.hidden) {
    if (line < s.heads) grad.bias[line] = sum;
  } else if (line < s.heads) {
    grad.weight[int64_t(line) * s.hidden + unit] = sum;
  } else if (line == s.heads) {
    grad.hidden_bias[unit] = sum;
    grad.hidden_weight[2 * unit] = sum_of_products;
  } else {
    grad.hidden_weight[2 * unit + 1] = sum;
  }
}

Sizes sizes_of(const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  return {
      weight.dim() == 3 ? static_cast<int>(weight.size(0)) : 1, static_cast<int>(vertical.size(0)),
      static_cast<int>(horizontal.size(0)), static_cast<int>(weight.size(-1)), static_cast<int>(weight.size(-2))};
}

template <typename T>
Inputs<T> inputs_of(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight) {
  return {DataOf{vertical}, DataOf{horizontal}, DataOf{hidden_weight}, DataOf{hidden_bias}, DataOf{weight}};
}

}  // namespace

Tensor log_cpb_table_forward_cuda(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& weight, const Tensor& bias) {
  const Sizes s = sizes_of(vertical, horizontal, weight);
  Tensor table = empty(sizes_of_mlps(weight, {s.heads, s.rows, s.columns}), vertical.options());
  const dim3 blocks(divide_up(s.columns, kWarpSize), divide_up(s.rows, kWarps), s.mlps * divide_up(s.heads, kHeads));
  dispatch<float, double>(vertical.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    launch(
        table_kernel<scalar_t>, blocks, kThreads, sizeof(TableMemory<scalar_t>),
        inputs_of<scalar_t>(vertical, horizontal, hidden_weight, hidden_bias, weight), bias, table, s);
  });
  return table;
}

LogCPBGradients log_cpb_table_backward_cuda(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& weight) {
  const Sizes s = sizes_of(vertical, horizontal, weight);
  const auto options = weight.options();
  const Tensor parts = empty({s.mlps, s.rows, s.lines(), s.units()}, options);
  Tensor grad_hidden_weight = empty_like(hidden_weight), grad_hidden_bias = empty_like(hidden_bias);
  Tensor grad_weight = empty_like(weight), grad_bias = empty(sizes_of_mlps(weight, {s.heads}), options);
  const int unit_blocks = divide_up(s.units(), kWarpSize);
  dispatch<float, double>(vertical.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Inputs<T> pointers = inputs_of<T>(vertical, horizontal, hidden_weight, hidden_bias, weight);
    launch(
        parts_kernel<T>, dim3(unit_blocks, divide_up(s.rows, kWarps), s.mlps), kThreads, sizeof(PartsMemory<T>),
        grad_table, pointers, parts, s);
    const GradientsOf<T> grad{
        DataOf{grad_hidden_weight}, DataOf{grad_hidden_bias}, DataOf{grad_weight}, DataOf{grad_bias}};
    launch(
        gradients_kernel<T>, dim3(unit_blocks, s.lines(), s.mlps), kThreads, sizeof(T[2][kWarps][kWarpSize]), parts,
        vertical, grad, s);
  });
  return {grad_hidden_weight, grad_hidden_bias, grad_weight, grad_bias};
}

}  // namespace bioattn_mm
