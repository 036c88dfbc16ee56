// Aggregated attention on the CPU, fused: attention weights exist for one tile of queries at a time.
//
// The pooled part of a tile is two small matrix products (in the BLAS of PyTorch); the window part reads keys and
// values where they lie in memory. In the backward pass a task owns one head and one block of columns, and with them
// all gradients of the position bias that it adds to: sums have the same order for any number of threads.

#include "../aggregated_attention.h"
#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace bioattn_mm {
namespace {

constexpr int64_t kTileColumns = 32;
constexpr int64_t kTileQueries = 256;
constexpr int64_t kTileWeights = 1 << 16;  // the pooled weights of a tile stay in the second-level cache

// Queries of one head and image in a rectangle of rows and columns; `bottom` and `right` are not in it.
struct Tile {
  int64_t queries() const { return (bottom - top) * (right - left); }

  int64_t image, head, top, bottom, left, right;
};

// How images are cut into tiles.
struct Tiling {
  explicit Tiling(const Sizes<int64_t>& sizes) : s(sizes), columns(std::min(s.width, kTileColumns)) {
    const int64_t queries = std::clamp(kTileWeights / s.pooled, int64_t(16), kTileQueries);
    rows = std::clamp(queries / columns, int64_t(1), s.height);
    row_blocks = (s.height + rows - 1) / rows;
    column_blocks = (s.width + columns - 1) / columns;
  }

  Tile tile(int64_t image, int64_t head, int64_t row_block, int64_t column_block) const {
    const int64_t top = row_block * rows, left = column_block * columns;
    return {image, head, top, std::min(s.height, top + rows), left, std::min(s.width, left + columns)};
  }

  const Sizes<int64_t>& s;
  int64_t columns, rows;  // of a tile
  int64_t column_blocks, row_blocks;
};

// Buffers for one tile; each thread has its own.
template <typename T>
struct Workspace {
  Workspace(const Sizes<int64_t>& s, int64_t queries, bool backward)
      : query(queries * s.channels),
        output(queries * s.channels),
        pooled_weights(queries * s.pooled),
        window_weights(queries * s.offsets),
        scale(queries),
        grad_query(backward ? queries * s.channels : 0),
        grad_pooled(backward ? queries * s.pooled : 0) {}

  std::vector<T> query, output, pooled_weights, window_weights, scale, grad_query, grad_pooled;
};

// A tile of queries and what its weights are computed from. Loops take tasks by value, which keeps members in registers.
template <typename T>
struct Task {
  int64_t token(int64_t i, int64_t j) const { return s.token(tile.image, tile.head, i, j); }

  Pointers<T> p;
  Sizes<int64_t> s;
  Tile tile;
  Workspace<T>& work;
};

template <typename T>
struct ForwardTask : Task<T> {
  T *output, *logsumexp;
};

// What the backward pass reads and writes.
template <typename T>
struct BackwardData {
  const T *grad_output, *logsumexp;
  MutablePointers<T> grad;
  T* grad_window;     // gradients of the window logits, (B, H, W, heads, k * k)
  T* window_factors;  // weights of the window values with the token weights, (B, H, W, heads, k * k)
};

template <typename T>
struct BackwardTask : Task<T> {
  BackwardData<T> data;
};

// The keys and values of one row of an image.
template <typename T>
struct RowTask {
  Pointers<T> p;
  Sizes<int64_t> s;
  BackwardData<T> data;
  int64_t image, row;
};

// Adds the position bias to the pooled logits of a tile and computes its window logits.
template <typename T>
BIOATTN_INLINE void compute_logits_body(const Task<T> task) {
  const auto& s = task.s;
  const auto& tile = task.tile;
  const T* query = task.work.query.data();
  T* pooled = task.work.pooled_weights.data();
  T* window = task.work.window_weights.data();
  for (int64_t i = tile.top; i < tile.bottom; ++i) {
    for (int64_t j = tile.left; j < tile.right; ++j) {
      for (int64_t u = 0; u < s.pooled_height; ++u) {
        const int64_t row = task.p.pooled_bias_rows[i * s.pooled_height + u];
        add_scaled(
            pooled + u * s.pooled_width, T(1), task.p.pooled_bias + s.bias(tile.head, row, j), s.pooled_width);
      }
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const T* key = task.p.key + task.token(y, x) * s.channels;
        window[offset] = dot(query, key, s.channels) + task.p.window_bias[tile.head * s.offsets + offset];
      });
      query += s.channels;
      pooled += s.pooled;
      window += s.offsets;
    }
  }
}

// Turns the logits of a tile into exponentials; their sum is kept as its inverse, `scale`, and its logarithm.
template <typename T>
BIOATTN_INLINE void compute_softmax_body(const ForwardTask<T> task) {
  const auto& s = task.s;
  T* pooled = task.work.pooled_weights.data();
  T* window = task.work.window_weights.data();
  T* scale = task.work.scale.data();
  for (int64_t i = task.tile.top; i < task.tile.bottom; ++i) {
    for (int64_t j = task.tile.left; j < task.tile.right; ++j) {
      T highest = maximum(pooled, s.pooled, -std::numeric_limits<T>::infinity());
      for_window(s, i, j, [&](int64_t offset, int64_t, int64_t) { highest = std::max(highest, window[offset]); });
      T sum = exponentiate(pooled, s.pooled, highest);
      for_window(s, i, j, [&](int64_t offset, int64_t, int64_t) {
        window[offset] = exponential(window[offset] - highest);
        sum += window[offset];
      });
      *scale++ = 1 / sum;
      task.logsumexp[task.token(i, j)] = highest + std::log(sum);
      pooled += s.pooled;
      window += s.offsets;
    }
  }
}

// Normalises the sums of the pooled values of a tile, adds those of the window, and writes the output.
template <typename T>
BIOATTN_INLINE void write_output_body(const ForwardTask<T> task) {
  const auto& s = task.s;
  const T* pooled_sum = task.work.output.data();
  const T* window = task.work.window_weights.data();
  const T* scale = task.work.scale.data();
  for (int64_t i = task.tile.top; i < task.tile.bottom; ++i) {
    for (int64_t j = task.tile.left; j < task.tile.right; ++j) {
      const int64_t token = task.token(i, j);
      T* sum = task.output + token * s.channels;
      for (int64_t c = 0; c < s.channels; ++c) sum[c] = pooled_sum[c] * *scale;
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const T weight = window[offset] * *scale + task.p.token_weights[token * s.offsets + offset];
        add_scaled(sum, weight, task.p.value + task.token(y, x) * s.channels, s.channels);
      });
      pooled_sum += s.channels;
      window += s.offsets;
      ++scale;
    }
  }
}

// Gradients of the logits of a tile. At the start the workspace holds the logits, grad_output in `output` and the
// products of grad_output and the pooled values in `grad_pooled`. At the end it holds the weights of the pooled keys in
// `pooled_weights`, the gradients of their logits in `grad_pooled`, and the window's part of the queries' gradient in
// `grad_query`. The gradients of token weights and position bias, grad_window and window_factors are written.
template <typename T>
BIOATTN_INLINE void compute_gradients_body(const BackwardTask<T> task) {
  const auto& s = task.s;
  const auto& tile = task.tile;
  const auto& data = task.data;
  const T* grad_output = task.work.output.data();
  T* pooled = task.work.pooled_weights.data();
  T* window = task.work.window_weights.data();
  T* grad_query = task.work.grad_query.data();
  T* grad_pooled = task.work.grad_pooled.data();
  for (int64_t i = tile.top; i < tile.bottom; ++i) {
    for (int64_t j = tile.left; j < tile.right; ++j) {
      const int64_t token = task.token(i, j);
      T* grad_tokens = data.grad.token_weights + token * s.offsets;  // also the gradient of the window weights
      const T shift = data.logsumexp[token];
      exponentiate(pooled, s.pooled, shift);
      // The gradient of a logit is weight * (gradient of the weight - mean of these under the weights).
      T mean = dot(pooled, grad_pooled, s.pooled);
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        window[offset] = exponential(window[offset] - shift);
        grad_tokens[offset] = dot(grad_output, task.p.value + task.token(y, x) * s.channels, s.channels);
        mean += window[offset] * grad_tokens[offset];
      });
#pragma omp simd
      for (int64_t k = 0; k < s.pooled; ++k) grad_pooled[k] = pooled[k] * (grad_pooled[k] - mean);
      for (int64_t u = 0; u < s.pooled_height; ++u) {
        const int64_t row = task.p.pooled_bias_rows[i * s.pooled_height + u];
        T* grad_bias = data.grad.pooled_bias + s.bias(tile.head, row, j);
        add_scaled(grad_bias, T(1), grad_pooled + u * s.pooled_width, s.pooled_width);
      }
      std::fill_n(grad_query, s.channels, T(0));
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const int64_t place = token * s.offsets + offset;
        data.grad_window[place] = window[offset] * (grad_tokens[offset] - mean);
        data.window_factors[place] = window[offset] + task.p.token_weights[place];
        add_scaled(grad_query, data.grad_window[place], task.p.key + task.token(y, x) * s.channels, s.channels);
      });
      grad_output += s.channels;
      grad_query += s.channels;
      pooled += s.pooled;
      grad_pooled += s.pooled;
      window += s.offsets;
    }
  }
}

// Gradients of the keys and values of a row: each token gathers from the queries in whose windows it is.
template <typename T>
BIOATTN_INLINE void gather_key_value_gradients_body(const RowTask<T> task) {
  const auto& s = task.s;
  const auto& data = task.data;
  for (int64_t j = 0; j < s.width; ++j) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t token = s.token(task.image, head, task.row, j) * s.channels;
      for_window(s, task.row, j, [&](int64_t offset, int64_t y, int64_t x) {
        const int64_t query = s.token(task.image, head, y, x);
        // In the window of that query, this token has the opposite offset.
        const int64_t place = query * s.offsets + s.offsets - 1 - offset;
        add_scaled(data.grad.key + token, data.grad_window[place], task.p.query + query * s.channels, s.channels);
        add_scaled(
            data.grad.value + token, data.window_factors[place], data.grad_output + query * s.channels, s.channels);
      });
    }
  }
}

BIOATTN_CLONE(compute_logits, Task)
BIOATTN_CLONE(compute_softmax, ForwardTask)
BIOATTN_CLONE(write_output, ForwardTask)
BIOATTN_CLONE(compute_gradients, BackwardTask)
BIOATTN_CLONE(gather_key_value_gradients, RowTask)

// A matrix over memory of the inputs or of a workspace.
template <typename T>
Tensor matrix(const T* data, int64_t rows, int64_t columns, int64_t stride) {
  return at::from_blob(
      const_cast<T*>(data), {rows, columns}, {stride, 1}, at::TensorOptions(c10::CppTypeToScalarType<T>::value));
}

// The matrices of a tile's pooled part; `output` is (queries, d), as the queries are.
template <typename T>
struct Matrices {
  explicit Matrices(const Task<T>& task) {
    const auto& s = task.s;
    const int64_t queries = task.tile.queries();
    const int64_t pooled = s.pooled_token(task.tile.image, task.tile.head, 0, 0) * s.channels;
    query = matrix(task.work.query.data(), queries, s.channels, s.channels);
    output = matrix(task.work.output.data(), queries, s.channels, s.channels);
    weights = matrix(task.work.pooled_weights.data(), queries, s.pooled, s.pooled);
    key = matrix(task.p.pooled_key + pooled, s.pooled, s.channels, s.heads * s.channels);
    value = matrix(task.p.pooled_value + pooled, s.pooled, s.channels, s.heads * s.channels);
  }

  Tensor query, output, weights, key, value;
};

// Copies the queries of a tile, or other tokens in their places, to `target`.
template <typename T>
void gather(const Task<T>& task, const T* source, T* target) {
  for (int64_t i = task.tile.top; i < task.tile.bottom; ++i)
    for (int64_t j = task.tile.left; j < task.tile.right; ++j, target += task.s.channels)
      std::copy_n(source + task.token(i, j) * task.s.channels, task.s.channels, target);
}

// Fills the workspace with the queries and all logits of a tile.
template <typename T>
void compute_all_logits(const Task<T>& task, Matrices<T>& m) {
  gather(task, task.p.query, task.work.query.data());
  at::mm_out(m.weights, m.query, m.key.t());
  compute_logits(task);
}

template <typename T>
void forward(const Inputs& inputs, Tensor& output, Tensor& logsumexp) {
  const Sizes<int64_t> s(inputs);
  const auto p = pointers_to<Pointers<T>>(inputs);
  const Tiling tiling(s);
  const int64_t columns = tiling.column_blocks, rows = tiling.row_blocks;
  T* output_data = output.mutable_data_ptr<T>();
  T* logsumexp_data = logsumexp.mutable_data_ptr<T>();
  at::parallel_for(0, s.batch * s.heads * rows * columns, 1, [&](int64_t begin, int64_t end) {
    Workspace<T> work(s, tiling.rows * tiling.columns, false);
    for (int64_t number = begin; number < end; ++number) {
      const int64_t plane = number / columns / rows;  // image and head
      const Tile tile = tiling.tile(plane / s.heads, plane % s.heads, number / columns % rows, number % columns);
      const ForwardTask<T> task{{p, s, tile, work}, output_data, logsumexp_data};
      Matrices<T> m(task);
      compute_all_logits(task, m);
      compute_softmax(task);
      at::mm_out(m.output, m.weights, m.value);
      write_output(task);
    }
  });
}

template <typename T>
Inputs backward(const Tensor& grad_output, const Inputs& inputs, const Tensor& logsumexp) {
  const Sizes<int64_t> s(inputs);
  const auto p = pointers_to<Pointers<T>>(inputs);
  const Tiling tiling(s);
  const int64_t columns = tiling.column_blocks;

  Inputs grad;
  grad.query = at::empty_like(inputs.query);
  grad.key = at::zeros_like(inputs.key);
  grad.value = at::zeros_like(inputs.value);
  grad.pooled_bias = at::zeros_like(inputs.pooled_bias);
  grad.token_weights = at::zeros_like(inputs.token_weights);
  const Tensor grad_window = at::zeros_like(inputs.token_weights), window_factors = at::zeros_like(grad_window);
  // One sum for each block of columns; they are added up in order at the end.
  const std::vector<int64_t> pooled_sizes{columns, s.batch, s.heads, s.pooled, s.channels};
  const Tensor pooled_key_sums = at::zeros(pooled_sizes, inputs.query.options());
  const Tensor pooled_value_sums = at::zeros_like(pooled_key_sums);
  const T* pooled_key_data = pooled_key_sums.mutable_data_ptr<T>();
  const T* pooled_value_data = pooled_value_sums.mutable_data_ptr<T>();

  const BackwardData<T> data{
      grad_output.const_data_ptr<T>(), logsumexp.const_data_ptr<T>(), pointers_to<MutablePointers<T>>(grad),
      grad_window.mutable_data_ptr<T>(), window_factors.mutable_data_ptr<T>()};
  at::parallel_for(0, s.heads * columns, 1, [&](int64_t begin, int64_t end) {
    Workspace<T> work(s, tiling.rows * tiling.columns, true);
    for (int64_t number = begin; number < end; ++number) {
      const int64_t head = number / columns, block = number % columns;
      for (int64_t image = 0; image < s.batch; ++image) {
        const int64_t sums = ((block * s.batch + image) * s.heads + head) * s.pooled * s.channels;
        Tensor pooled_key_sum = matrix(pooled_key_data + sums, s.pooled, s.channels, s.channels);
        Tensor pooled_value_sum = matrix(pooled_value_data + sums, s.pooled, s.channels, s.channels);
        for (int64_t row_block = 0; row_block < tiling.row_blocks; ++row_block) {
          const Tile tile = tiling.tile(image, head, row_block, block);
          const BackwardTask<T> task{{p, s, tile, work}, data};
          Matrices<T> m(task);
          Tensor grad_weights = matrix(work.grad_pooled.data(), tile.queries(), s.pooled, s.pooled);
          gather(task, data.grad_output, work.output.data());
          at::mm_out(grad_weights, m.output, m.value.t());
          compute_all_logits(task, m);
          compute_gradients(task);
          at::addmm_out(pooled_value_sum, pooled_value_sum, m.weights.t(), m.output);
          at::addmm_out(pooled_key_sum, pooled_key_sum, grad_weights.t(), m.query);
          // The gradient of the queries is the window's part and the pooled part, for which `output` has room by now.
          at::mm_out(m.output, grad_weights, m.key);
          const T *window_part = work.grad_query.data(), *pooled_part = work.output.data();
          for (int64_t i = tile.top; i < tile.bottom; ++i)
            for (int64_t j = tile.left; j < tile.right; ++j) {
              T* target = data.grad.query + task.token(i, j) * s.channels;
              for (int64_t c = 0; c < s.channels; ++c) target[c] = *window_part++ + *pooled_part++;
            }
        }
      }
    }
  });
  at::parallel_for(0, s.batch * s.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      gather_key_value_gradients(RowTask<T>{p, s, data, row / s.height, row % s.height});
  });

  const auto to_pooled = [&](const Tensor& sums) {  // (blocks, B, heads, P, d) to (B, Ph, Pw, heads, d)
    return sums.sum(0).transpose(1, 2).reshape({s.batch, s.pooled_height, s.pooled_width, s.heads, s.channels});
  };
  grad.pooled_key = to_pooled(pooled_key_sums);
  grad.pooled_value = to_pooled(pooled_value_sums);
  grad.window_bias = grad_window.sum({0, 1, 2});
  return grad;
}

}  // namespace

Forward aggregated_attention_forward_cpu(const Inputs& inputs) {
  // The only input whose values, not only its shape, decide where memory is read and written.
  const Tensor& rows = inputs.pooled_bias_rows;
  const int64_t* first = rows.const_data_ptr<int64_t>();
  const int64_t bias_rows = inputs.pooled_bias.size(1);
  TORCH_CHECK_INDEX(
      std::all_of(first, first + rows.numel(), [&](int64_t row) { return 0 <= row && row < bias_rows; }),
      "pooled_bias_rows must be 0 to ", bias_rows - 1, ", the rows of pooled_bias");
  Tensor output = at::empty_like(inputs.query);
  Tensor logsumexp = at::empty(inputs.query.sizes().slice(0, 4), inputs.query.options());
  AT_DISPATCH_FLOATING_TYPES(inputs.query.scalar_type(), "aggregated_attention", [&] {
    forward<scalar_t>(inputs, output, logsumexp);
  });
  return {output, logsumexp};
}

Inputs aggregated_attention_backward_cpu(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& logsumexp) {
  Inputs gradients;
  AT_DISPATCH_FLOATING_TYPES(inputs.query.scalar_type(), "aggregated_attention_backward", [&] {
    gradients = backward<scalar_t>(grad_output, inputs, logsumexp);
  });
  return gradients;
}

}  // namespace bioattn_mm
