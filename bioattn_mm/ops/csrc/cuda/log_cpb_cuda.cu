// Table of the log-spaced position bias on a GPU: the hidden activations stay in registers.
//
// Every sum has one order, so results repeat to the last bit: a thread adds up an element of the table over the hidden
// units, or an element of a gradient over rows or columns. The gradient of the weight is a sum over both: each row of
// the table gives a part of it, and PyTorch adds these up.

#include "log_cpb.h"

#include "cuda/device.cuh"
#include "cuda/launch.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

namespace bioattn_mm {
namespace {

using at::Tensor;

constexpr int kWarps = 8, kThreads = kWarps * kLanes;
constexpr int kHeads = 4;   // computed at a time with one activation
constexpr int kUnits = 64;  // hidden units that a block of the forward pass stages at a time

struct Sizes {
  int rows, columns, hidden, heads;
};

// What belongs to one group of heads, loaded at once.
template <typename T>
struct alignas(16) Group {
  T of_head[kHeads];
};

// relu that keeps NaN
template <typename T>
__device__ __forceinline__ T relu(T x) {
  return x < T(0) ? T(0) : x;
}

// A block computes kWarps rows and kLanes columns of the table for one group of heads: a warp has a row, a lane a
// column. Beyond the edges there are zeros.
template <typename T>
struct TableMemory {
  Group<T> weight[kUnits];
  T row[kWarps][kUnits];
  T column[kUnits][kLanes + 1];  // no two lanes that store a column have the same bank
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    table_kernel(const T* vertical, const T* horizontal, const T* weight, const T* bias, T* table, Sizes s) {
  auto& shared = *reinterpret_cast<TableMemory<T>*>(block_memory());
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int first_column = blockIdx.x * kLanes, first_row = blockIdx.y * kWarps, first_head = blockIdx.z * kHeads;
  T sum[kHeads] = {};
  for (int first = 0; first < s.hidden; first += kUnits) {
    // Neighbours in a warp load neighbours in memory: hidden units of one row, column or head.
    const auto stage = [&](const T* source, int item, int items, int unit) {
      return item < items && first + unit < s.hidden ? source[int64_t(item) * s.hidden + first + unit] : T(0);
    };
    for (int i = threadIdx.x; i < kLanes * kUnits; i += kThreads) {
      const int unit = i % kUnits, column = i / kUnits;
      shared.column[unit][column] = stage(horizontal, first_column + column, s.columns, unit);
    }
    for (int i = threadIdx.x; i < kWarps * kUnits; i += kThreads) {
      const int unit = i % kUnits, row = i / kUnits;
      shared.row[row][unit] = stage(vertical, first_row + row, s.rows, unit);
    }
    for (int i = threadIdx.x; i < kHeads * kUnits; i += kThreads) {
      const int unit = i % kUnits, head = i / kUnits;
      shared.weight[unit].of_head[head] = stage(weight, first_head + head, s.heads, unit);
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
    if (head < s.heads) table[(int64_t(head) * s.rows + row) * s.columns + column] = sum[k] + bias[head];
  }
}

// One axis of the table in the backward pass: its lines are rows, and other lines cross them, or the other way round.
template <typename T>
struct Axis {
  const T *line, *other;  // (lines, hidden), (others, hidden): terms of the first layer
  T* grad_line;           // (lines, hidden)
  T* grad_weight;         // (lines, heads, hidden), for each line its part; null to leave it out
  int lines, others;
  int64_t line_stride, other_stride;  // in a head of grad_table
};

// A block computes the gradients of kWarps lines and kLanes hidden units, a warp those of one line. It goes through the
// groups of heads and, in each, through the other lines, of which it stages kLanes at a time.
template <typename T, bool kWithWeight>
__device__ __forceinline__ void line_gradients(const Axis<T>& axis, const T* grad_table, const T* weight, const Sizes& s) {
  auto& shared = *reinterpret_cast<Group<T>(*)[kWarps][kLanes]>(block_memory());  // of grad_table
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int first_line = blockIdx.y * kWarps, line = first_line + warp, unit = blockIdx.x * kLanes + lane;
  if (first_line >= axis.lines) return;  // the other axis has more
  const bool inside = line < axis.lines && unit < s.hidden;
  const T term = inside ? axis.line[int64_t(line) * s.hidden + unit] : T(0);
  T grad = 0;
  for (int first_head = 0; first_head < s.heads; first_head += kHeads) {
    T w[kHeads], grad_w[kHeads] = {};
#pragma unroll
    for (int k = 0; k < kHeads; ++k)
      w[k] = inside && first_head + k < s.heads ? weight[int64_t(first_head + k) * s.hidden + unit] : T(0);
    for (int first = 0; first < axis.others; first += kLanes) {
      for (int i = threadIdx.x; i < kWarps * kLanes * kHeads; i += kThreads) {
        const int k = i / (kLanes * kWarps), head = first_head + k;
        // Neighbours in a warp load neighbours in memory.
        const int local = axis.line_stride == 1 ? i % kWarps : i / kLanes % kWarps;
        const int other = axis.line_stride == 1 ? i / kWarps % kLanes : i % kLanes;
        const bool exists = first + other < axis.others && first_line + local < axis.lines && head < s.heads;
        const int64_t place = int64_t(head) * s.rows * s.columns + (first_line + local) * axis.line_stride +
                              (first + other) * axis.other_stride;
        shared[local][other].of_head[k] = exists ? grad_table[place] : T(0);
      }
      __syncthreads();
      const int count = inside ? axis.others - first : 0;
#pragma unroll 4
      for (int other = 0; other < kLanes && other < count; ++other) {
        const T activation = relu(term + axis.other[int64_t(first + other) * s.hidden + unit]);
        const Group<T> g = shared[warp][other];
        T grad_activation = 0;
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
          grad_activation += w[k] * g.of_head[k];
          if constexpr (kWithWeight) grad_w[k] += activation * g.of_head[k];
        }
        grad += activation > T(0) ? grad_activation : T(0);
      }
      __syncthreads();
    }
    if constexpr (kWithWeight)
      for (int k = 0; k < kHeads; ++k)
        if (inside && first_head + k < s.heads)
          axis.grad_weight[(int64_t(line) * s.heads + first_head + k) * s.hidden + unit] = grad_w[k];
  }
  if (inside) axis.grad_line[int64_t(line) * s.hidden + unit] = grad;
}

// blockIdx.z chooses the axis. Both read the whole of grad_table and know nothing of each other.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const T* grad_table, const T* weight, Axis<T> vertical, Axis<T> horizontal, Sizes s) {
  if (blockIdx.z == 0) {
    line_gradients<T, true>(vertical, grad_table, weight, s);
  } else {
    line_gradients<T, false>(horizontal, grad_table, weight, s);
  }
}

int blocks_for(int count, int in_a_block) { return (count + in_a_block - 1) / in_a_block; }

Sizes sizes_of(const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  return {
      static_cast<int>(vertical.size(0)), static_cast<int>(horizontal.size(0)), static_cast<int>(weight.size(1)),
      static_cast<int>(weight.size(0))};
}

}  // namespace

Tensor log_cpb_table_forward_cuda(
    const Tensor& vertical, const Tensor& horizontal, const Tensor& weight, const Tensor& bias) {
  const DeviceGuard guard(vertical.device());
  const Sizes s = sizes_of(vertical, horizontal, weight);
  Tensor table = at::empty({s.heads, s.rows, s.columns}, vertical.options());
  const dim3 blocks(blocks_for(s.columns, kLanes), blocks_for(s.rows, kWarps), blocks_for(s.heads, kHeads));
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table", [&] {
    launch(
        table_kernel<scalar_t>, blocks, kThreads, sizeof(TableMemory<scalar_t>),
        vertical.contiguous().template const_data_ptr<scalar_t>(),
        horizontal.contiguous().template const_data_ptr<scalar_t>(),
        weight.contiguous().template const_data_ptr<scalar_t>(), bias.contiguous().template const_data_ptr<scalar_t>(),
        table.mutable_data_ptr<scalar_t>(), s);
  });
  return table;
}

std::tuple<Tensor, Tensor, Tensor> log_cpb_table_backward_cuda(
    const Tensor& grad_table, const Tensor& vertical, const Tensor& horizontal, const Tensor& weight) {
  const DeviceGuard guard(vertical.device());
  const Sizes s = sizes_of(vertical, horizontal, weight);
  const auto options = vertical.options();
  Tensor grad_vertical = at::empty({s.rows, s.hidden}, options);
  Tensor grad_horizontal = at::empty({s.columns, s.hidden}, options);
  Tensor grad_weight_of_rows = at::empty({s.rows, s.heads, s.hidden}, options);
  const int lines = s.rows > s.columns ? s.rows : s.columns;
  const dim3 blocks(blocks_for(s.hidden, kLanes), blocks_for(lines, kWarps), 2);
  AT_DISPATCH_FLOATING_TYPES(vertical.scalar_type(), "log_cpb_table_backward", [&] {
    using T = scalar_t;
    const Tensor grad = grad_table.contiguous(), terms = vertical.contiguous(), others = horizontal.contiguous();
    const T *vertical_data = terms.const_data_ptr<T>(), *horizontal_data = others.const_data_ptr<T>();
    const Axis<T> rows{
        vertical_data, horizontal_data, grad_vertical.mutable_data_ptr<T>(), grad_weight_of_rows.mutable_data_ptr<T>(),
        s.rows, s.columns, s.columns, 1};
    const Axis<T> columns{
        horizontal_data, vertical_data, grad_horizontal.mutable_data_ptr<T>(), nullptr, s.columns, s.rows, 1, s.columns};
    launch(
        gradients_kernel<T>, blocks, kThreads, sizeof(Group<T>) * kWarps * kLanes, grad.const_data_ptr<T>(),
        weight.contiguous().template const_data_ptr<T>(), rows, columns, s);
  });
  return {grad_vertical, grad_horizontal, grad_weight_of_rows.sum(0)};
}

}  // namespace bioattn_mm
