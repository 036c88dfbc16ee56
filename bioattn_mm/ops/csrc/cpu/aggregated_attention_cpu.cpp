// Aggregated attention on the CPU, fused: the weights exist for a tile of queries at a time.
//
// The pooled part is two small matrix products a tile (the BLAS that PyTorch carries); the window part reads keys
// and values where they lie. Each tile belongs to one head and to a block of columns: a task owns the rows of the
// position bias's gradient that it writes, so the backward pass adds in one order whatever the number of threads.

#include "../aggregated_attention.h"
#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace bioattn_mm {
namespace {

constexpr int64_t kTileColumns = 32;
constexpr int64_t kTileQueries = 256;
constexpr int64_t kTileWeights = 1 << 16;  // the pooled weights of a tile stay in the second-level cache

// Queries of one head and image in a rectangle of rows and columns.
struct Tile {
  int64_t image, head, top, bottom, left, right;
};

// Positions in memory.
struct Index {
  explicit Index(const Sizes& sizes) : s(sizes) {}

  // Number of a token and head in (B, H, W, heads).
  int64_t token(const Tile& tile, int64_t i, int64_t j) const {
    return ((tile.image * s.height + i) * s.width + j) * s.heads + tile.head;
  }
  // First channel of the head's first pooled token in (B, P, heads, d).
  int64_t pooled(const Tile& tile) const { return (tile.image * s.pooled * s.heads + tile.head) * s.channels; }
  // First of the pooled columns of row `row` of the bias and column `j` in (heads, R, W, Pw).
  int64_t bias(const Tile& tile, int64_t row, int64_t j) const {
    return ((tile.head * s.bias_rows + row) * s.width + j) * s.pooled_width;
  }
  int64_t token_stride() const { return s.heads * s.channels; }

  const Sizes& s;
};

// Room for one tile; each thread has its own.
template <typename T>
struct Workspace {
  Workspace(const Sizes& sizes, int64_t queries)
      : query(queries * sizes.channels),
        output(queries * sizes.channels),
        pooled_weights(queries * sizes.pooled),
        window_weights(queries * sizes.offsets),
        scale(queries) {}

  std::vector<T> query, output, pooled_weights, window_weights, scale;
};

int64_t rows_per_tile(const Sizes& s, int64_t columns) {
  const int64_t queries = std::clamp(kTileWeights / s.pooled, int64_t(16), kTileQueries);
  return std::clamp(queries / columns, int64_t(1), s.height);
}

template <typename T>
BIOATTN_INLINE void gather_body(const T* source, T* target, const Sizes& s, const Tile& tile) {
  const Index index(s);
  for (int64_t i = tile.top; i < tile.bottom; ++i)
    for (int64_t j = tile.left; j < tile.right; ++j, target += s.channels)
      std::copy_n(source + index.token(tile, i, j) * s.channels, s.channels, target);
}

// Adds the position bias to the pooled logits and computes the window logits of a tile.
template <typename T>
BIOATTN_INLINE void logits_body(const Pointers<T>& p, const Sizes& s, const Tile& tile, Workspace<T>& work) {
  const Index index(s);
  const T* query = work.query.data();
  T* pooled = work.pooled_weights.data();
  T* window = work.window_weights.data();
  for (int64_t i = tile.top; i < tile.bottom; ++i) {
    for (int64_t j = tile.left; j < tile.right; ++j) {
      for (int64_t u = 0; u < s.pooled_height; ++u) {
        const int64_t row = p.pooled_bias_rows[i * s.pooled_height + u];
        add_scaled(pooled + u * s.pooled_width, T(1), p.pooled_bias + index.bias(tile, row, j), s.pooled_width);
      }
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const T* key = p.key + index.token(tile, y, x) * s.channels;
        window[offset] = dot(query, key, s.channels) + p.window_bias[tile.head * s.offsets + offset];
      });
      query += s.channels;
      pooled += s.pooled;
      window += s.offsets;
    }
  }
}

// Turns the logits into exponentials, unnormalised: `scale` gets 1 / sum, and `logsumexp` its logarithm.
template <typename T>
BIOATTN_INLINE void softmax_body(const Sizes& s, const Tile& tile, Workspace<T>& work, T* logsumexp) {
  const Index index(s);
  T* pooled = work.pooled_weights.data();
  T* window = work.window_weights.data();
  T* scale = work.scale.data();
  for (int64_t i = tile.top; i < tile.bottom; ++i) {
    for (int64_t j = tile.left; j < tile.right; ++j) {
      T highest = maximum(pooled, s.pooled, -std::numeric_limits<T>::infinity());
      for_window(s, i, j, [&](int64_t offset, int64_t, int64_t) { highest = std::max(highest, window[offset]); });
      T sum = exponentiate(pooled, s.pooled, highest);
      for_window(s, i, j, [&](int64_t offset, int64_t, int64_t) {
        window[offset] = exponential(window[offset] - highest);
        sum += window[offset];
      });
      *scale++ = 1 / sum;
      logsumexp[index.token(tile, i, j)] = highest + std::log(sum);
      pooled += s.pooled;
      window += s.offsets;
    }
  }
}

// Normalises the pooled sums, adds the window's, and writes the output of a tile.
template <typename T>
BIOATTN_INLINE void output_body(
    const Pointers<T>& p, const Sizes& s, const Tile& tile, Workspace<T>& work, T* output) {
  const Index index(s);
  const T* pooled_sum = work.output.data();
  const T* window = work.window_weights.data();
  const T* scale = work.scale.data();
  for (int64_t i = tile.top; i < tile.bottom; ++i) {
    for (int64_t j = tile.left; j < tile.right; ++j) {
      const int64_t token = index.token(tile, i, j);
      T* sum = output + token * s.channels;
      for (int64_t c = 0; c < s.channels; ++c) sum[c] = pooled_sum[c] * *scale;
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const T weight = window[offset] * *scale + p.token_weights[token * s.offsets + offset];
        add_scaled(sum, weight, p.value + index.token(tile, y, x) * s.channels, s.channels);
      });
      pooled_sum += s.channels;
      window += s.offsets;
      ++scale;
    }
  }
}

// Gradients of the logits of a tile. In: logits in `work`, the products grad_output . pooled_value in `grad_pooled`,
// grad_output in `work.output`. Out: weights in work.pooled_weights, gradients of the logits in `grad_pooled`; written
// where they belong: gradients of the token weights and of the pooled bias, and for the pass over keys and values
// the gradients of the window logits and the weights that the window values were multiplied by.
template <typename T>
BIOATTN_INLINE void gradient_body(
    const Pointers<T>& p, const Sizes& s, const Tile& tile, Workspace<T>& work, const T* logsumexp, T* grad_pooled,
    T* grad_query, T* grad_pooled_bias, T* grad_token_weights, T* grad_window, T* window_factors) {
  const Index index(s);
  const T* grad_output = work.output.data();
  T* pooled = work.pooled_weights.data();
  T* window = work.window_weights.data();
  for (int64_t i = tile.top; i < tile.bottom; ++i) {
    for (int64_t j = tile.left; j < tile.right; ++j) {
      const int64_t token = index.token(tile, i, j);
      T* grad_tokens = grad_token_weights + token * s.offsets;  // also the gradient of the window weights
      const T shift = logsumexp[token];
      exponentiate(pooled, s.pooled, shift);
      // The softmax's Jacobian subtracts the mean of the gradient of the weights under the weights.
      T mean = dot(pooled, grad_pooled, s.pooled);
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        window[offset] = exponential(window[offset] - shift);
        grad_tokens[offset] = dot(grad_output, p.value + index.token(tile, y, x) * s.channels, s.channels);
        mean += window[offset] * grad_tokens[offset];
      });
#pragma omp simd
      for (int64_t k = 0; k < s.pooled; ++k) grad_pooled[k] = pooled[k] * (grad_pooled[k] - mean);
      for (int64_t u = 0; u < s.pooled_height; ++u) {
        const int64_t row = p.pooled_bias_rows[i * s.pooled_height + u];
        add_scaled(
            grad_pooled_bias + index.bias(tile, row, j), T(1), grad_pooled + u * s.pooled_width, s.pooled_width);
      }
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        const T grad_logit = window[offset] * (grad_tokens[offset] - mean);
        grad_window[token * s.offsets + offset] = grad_logit;
        window_factors[token * s.offsets + offset] = window[offset] + p.token_weights[token * s.offsets + offset];
        add_scaled(grad_query, grad_logit, p.key + index.token(tile, y, x) * s.channels, s.channels);
      });
      grad_output += s.channels;
      grad_query += s.channels;
      pooled += s.pooled;
      grad_pooled += s.pooled;
      window += s.offsets;
    }
  }
}

// Gradients of the keys and values of one row of one image: each token gathers from the queries that see it.
template <typename T>
BIOATTN_INLINE void key_value_body(
    const Pointers<T>& p, const Sizes& s, const T* grad_output, int64_t image, int64_t i, const T* grad_window,
    const T* window_factors, T* grad_key, T* grad_value) {
  const Index index(s);
  for (int64_t j = 0; j < s.width; ++j) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const Tile tile{image, head, i, i + 1, j, j + 1};
      const int64_t token = index.token(tile, i, j);
      for_window(s, i, j, [&](int64_t offset, int64_t y, int64_t x) {
        // Seen from there, this token lies at the opposite offset.
        const int64_t query = index.token(tile, y, x);
        const int64_t weight = query * s.offsets + s.offsets - 1 - offset;
        add_scaled(grad_key + token * s.channels, grad_window[weight], p.query + query * s.channels, s.channels);
        add_scaled(
            grad_value + token * s.channels, window_factors[weight], grad_output + query * s.channels, s.channels);
      });
    }
  }
}

// The bodies compiled for each instruction set: clones must be plain functions, so one for each dtype.
#define BIOATTN_FOR_DTYPE(T)                                                                                          \
  BIOATTN_CLONES void gather(const T* source, T* target, const Sizes& s, const Tile& tile) {                          \
    gather_body(source, target, s, tile);                                                                             \
  }                                                                                                                   \
  BIOATTN_CLONES void compute_logits(const Pointers<T>& p, const Sizes& s, const Tile& tile, Workspace<T>& work) {    \
    logits_body(p, s, tile, work);                                                                                    \
  }                                                                                                                   \
  BIOATTN_CLONES void compute_softmax(const Sizes& s, const Tile& tile, Workspace<T>& work, T* logsumexp) {           \
    softmax_body(s, tile, work, logsumexp);                                                                           \
  }                                                                                                                   \
  BIOATTN_CLONES void write_output(                                                                                   \
      const Pointers<T>& p, const Sizes& s, const Tile& tile, Workspace<T>& work, T* output) {                        \
    output_body(p, s, tile, work, output);                                                                            \
  }                                                                                                                   \
  BIOATTN_CLONES void compute_gradients(                                                                              \
      const Pointers<T>& p, const Sizes& s, const Tile& tile, Workspace<T>& work, const T* logsumexp, T* grad_pooled, \
      T* grad_query, T* grad_pooled_bias, T* grad_token_weights, T* grad_window, T* window_factors) {                 \
    gradient_body(                                                                                                    \
        p, s, tile, work, logsumexp, grad_pooled, grad_query, grad_pooled_bias, grad_token_weights, grad_window,      \
        window_factors);                                                                                              \
  }                                                                                                                   \
  BIOATTN_CLONES void gather_key_value_gradients(                                                                     \
      const Pointers<T>& p, const Sizes& s, const T* grad_output, int64_t image, int64_t i, const T* grad_window,   \
      const T* window_factors, T* grad_key, T* grad_value) {                                                          \
    key_value_body(p, s, grad_output, image, i, grad_window, window_factors, grad_key, grad_value);                 \
  }
BIOATTN_FOR_DTYPE(float)
BIOATTN_FOR_DTYPE(double)

// A matrix over memory of the inputs or of a workspace.
template <typename T>
Tensor matrix(const T* data, int64_t rows, int64_t columns, int64_t stride) {
  return at::from_blob(
      const_cast<T*>(data), {rows, columns}, {stride, 1}, at::TensorOptions(c10::CppTypeToScalarType<T>::value));
}

template <typename T>
void forward(const Inputs& inputs, Tensor& output, Tensor& logsumexp) {
  const Sizes s(inputs);
  const Pointers<T> p(inputs);
  const Index index(s);
  const int64_t columns = std::min(s.width, kTileColumns), rows = rows_per_tile(s, columns);
  const int64_t column_blocks = (s.width + columns - 1) / columns, row_blocks = (s.height + rows - 1) / rows;
  T* output_data = output.mutable_data_ptr<T>();
  T* logsumexp_data = logsumexp.mutable_data_ptr<T>();
  at::parallel_for(0, s.batch * s.heads * row_blocks * column_blocks, 1, [&](int64_t begin, int64_t end) {
    Workspace<T> work(s, rows * columns);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % column_blocks, row = task / column_blocks % row_blocks;
      const int64_t head = task / column_blocks / row_blocks % s.heads;
      const Tile tile{
          task / column_blocks / row_blocks / s.heads,   head,
          row * rows,    std::min(s.height, row * rows + rows),
          column * columns, std::min(s.width, column * columns + columns)};
      const int64_t queries = (tile.bottom - tile.top) * (tile.right - tile.left);
      const int64_t pooled = index.pooled(tile), stride = index.token_stride();
      const Tensor query = matrix(work.query.data(), queries, s.channels, s.channels);
      const Tensor pooled_key = matrix(p.pooled_key + pooled, s.pooled, s.channels, stride);
      const Tensor pooled_value = matrix(p.pooled_value + pooled, s.pooled, s.channels, stride);
      Tensor weights = matrix(work.pooled_weights.data(), queries, s.pooled, s.pooled);
      Tensor pooled_sum = matrix(work.output.data(), queries, s.channels, s.channels);

      gather(p.query, work.query.data(), s, tile);
      at::mm_out(weights, query, pooled_key.t());
      compute_logits(p, s, tile, work);
      compute_softmax(s, tile, work, logsumexp_data);
      at::mm_out(pooled_sum, weights, pooled_value);
      write_output(p, s, tile, work, output_data);
    }
  });
}

template <typename T>
Backward backward(const Tensor& grad_output, const Inputs& inputs, const Tensor& logsumexp) {
  const Sizes s(inputs);
  const Pointers<T> p(inputs);
  const Index index(s);
  const int64_t columns = std::min(s.width, kTileColumns), rows = rows_per_tile(s, columns);
  const int64_t column_blocks = (s.width + columns - 1) / columns;

  const auto options = inputs.query.options();
  Tensor grad_query = at::empty_like(inputs.query);
  Tensor grad_key = at::zeros_like(inputs.key), grad_value = at::zeros_like(inputs.value);
  Tensor grad_pooled_bias = at::zeros_like(inputs.pooled_bias);
  Tensor grad_token_weights = at::zeros_like(inputs.token_weights);
  Tensor grad_window = at::zeros_like(inputs.token_weights), window_factors = at::zeros_like(inputs.token_weights);
  // One sum a block of columns, added up in order afterwards.
  const std::vector<int64_t> pooled_sizes{column_blocks, s.batch, s.heads, s.pooled, s.channels};
  Tensor grad_pooled_key = at::zeros(pooled_sizes, options), grad_pooled_value = at::zeros(pooled_sizes, options);

  const T* grad_output_data = grad_output.const_data_ptr<T>();
  const T* logsumexp_data = logsumexp.const_data_ptr<T>();
  T* grad_query_data = grad_query.mutable_data_ptr<T>();
  T* grad_key_data = grad_key.mutable_data_ptr<T>();
  T* grad_value_data = grad_value.mutable_data_ptr<T>();
  T* grad_pooled_bias_data = grad_pooled_bias.mutable_data_ptr<T>();
  T* grad_token_data = grad_token_weights.mutable_data_ptr<T>();
  T* grad_window_data = grad_window.mutable_data_ptr<T>();
  T* factors_data = window_factors.mutable_data_ptr<T>();
  T* grad_pooled_key_data = grad_pooled_key.mutable_data_ptr<T>();
  T* grad_pooled_value_data = grad_pooled_value.mutable_data_ptr<T>();

  at::parallel_for(0, s.heads * column_blocks, 1, [&](int64_t begin, int64_t end) {
    Workspace<T> work(s, rows * columns);
    std::vector<T> grad_pooled(rows * columns * s.pooled), grad_tile(rows * columns * s.channels);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / column_blocks, block = task % column_blocks;
      for (int64_t image = 0; image < s.batch; ++image) {
        const int64_t sums = ((block * s.batch + image) * s.heads + head) * s.pooled * s.channels;
        for (int64_t top = 0; top < s.height; top += rows) {
          const Tile tile{
              image, head, top, std::min(s.height, top + rows), block * columns,
              std::min(s.width, block * columns + columns)};
          const int64_t queries = (tile.bottom - tile.top) * (tile.right - tile.left);
          const int64_t pooled = index.pooled(tile), stride = index.token_stride();
          const Tensor query = matrix(work.query.data(), queries, s.channels, s.channels);
          const Tensor pooled_key = matrix(p.pooled_key + pooled, s.pooled, s.channels, stride);
          const Tensor pooled_value = matrix(p.pooled_value + pooled, s.pooled, s.channels, stride);
          Tensor weights = matrix(work.pooled_weights.data(), queries, s.pooled, s.pooled);
          Tensor grad_weights = matrix(grad_pooled.data(), queries, s.pooled, s.pooled);
          Tensor grad_sum = matrix(work.output.data(), queries, s.channels, s.channels);
          Tensor pooled_key_sum = matrix(grad_pooled_key_data + sums, s.pooled, s.channels, s.channels);
          Tensor pooled_value_sum = matrix(grad_pooled_value_data + sums, s.pooled, s.channels, s.channels);

          gather(p.query, work.query.data(), s, tile);
          gather(grad_output_data, work.output.data(), s, tile);
          at::mm_out(weights, query, pooled_key.t());
          at::mm_out(grad_weights, grad_sum, pooled_value.t());
          compute_logits(p, s, tile, work);
          std::fill(grad_tile.begin(), grad_tile.end(), T(0));
          compute_gradients(
              p, s, tile, work, logsumexp_data, grad_pooled.data(), grad_tile.data(), grad_pooled_bias_data,
              grad_token_data, grad_window_data, factors_data);
          at::addmm_out(pooled_value_sum, pooled_value_sum, weights.t(), grad_sum);
          at::addmm_out(pooled_key_sum, pooled_key_sum, grad_weights.t(), query);
          // The window's part of the query's gradient is in grad_tile; the pooled part takes the place of grad_sum.
          at::mm_out(grad_sum, grad_weights, pooled_key);
          const T *window_part = grad_tile.data(), *pooled_part = work.output.data();
          for (int64_t i = tile.top; i < tile.bottom; ++i)
            for (int64_t j = tile.left; j < tile.right; ++j) {
              T* target = grad_query_data + index.token(tile, i, j) * s.channels;
              for (int64_t c = 0; c < s.channels; ++c) target[c] = *window_part++ + *pooled_part++;
            }
        }
      }
    }
  });
  at::parallel_for(0, s.batch * s.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      gather_key_value_gradients(
          p, s, grad_output_data, row / s.height, row % s.height, grad_window_data, factors_data, grad_key_data,
          grad_value_data);
  });

  const auto to_pooled = [&](const Tensor& sums) {  // (blocks, B, heads, P, d) to (B, Ph, Pw, heads, d)
    return sums.sum(0).transpose(1, 2).reshape({s.batch, s.pooled_height, s.pooled_width, s.heads, s.channels});
  };
  return {
      grad_query,
      grad_key,
      grad_value,
      to_pooled(grad_pooled_key),
      to_pooled(grad_pooled_value),
      grad_window.sum({0, 1, 2}),
      grad_pooled_bias,
      grad_token_weights};
}

}  // namespace

Forward aggregated_attention_forward_cpu(const Inputs& inputs) {
  // The one argument whose values, not only its shape, say where memory is read and written.
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

Backward aggregated_attention_backward_cpu(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& logsumexp) {
  Backward gradients;
  AT_DISPATCH_FLOATING_TYPES(inputs.query.scalar_type(), "aggregated_attention_backward", [&] {
    gradients = backward<scalar_t>(grad_output, inputs, logsumexp);
  });
  return gradients;
}

}  // namespace bioattn_mm
