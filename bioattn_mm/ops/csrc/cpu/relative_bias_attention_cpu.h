// Attention with a relative position bias on the CPU, fused: attention weights exist for one block of queries and
// keys at a time, and the softmax keeps a running maximum.
//
// A tile of queries is a rectangle of the grid, column by column. The biases that one column of queries needs are
// copied to a strip, whose rows are as wide as the grid. There the biases of a query and all keys, in the order of
// the keys, are neighbours in memory: one loop without indices adds them, and one adds up their gradients.
//
// The products are matrix products in the BLAS of PyTorch. In the backward pass a task owns one head of one image,
// and with it all gradients that it adds to: sums have the same order for any number of threads.
#pragma once

#include "kernels.h"

namespace bioattn_mm::BIOATTN_ISA::relative_bias_attention {
namespace {

constexpr int64_t kTileQueries = 256;
constexpr int64_t kBlockKeys = 384;
constexpr int64_t kStrips = 1 << 16;  // biases that the strips of a tile have at most, unless a single one is larger

// The largest length up to `highest` that cuts `length` into parts of nearly the same size.
int64_t even_part(int64_t length, int64_t highest) { return divide_up(length, divide_up(length, highest)); }

// The sizes of the inputs, and of the tiles of queries and blocks of keys that the grid is cut into.
struct Sizes {
  explicit Sizes(const Tensor& query)
      : batch(query.size(0)),
        height(query.size(1)),
        width(query.size(2)),
        heads(query.size(3)),
        channels(query.size(4)),
        tokens(height * width),
        tile_rows(even_part(height, kTileQueries)),
        strip((height + tile_rows - 1) * width),
        tile_columns(even_part(width, std::max<int64_t>(1, std::min(kTileQueries / tile_rows, kStrips / strip)))),
        row_tiles(divide_up(height, tile_rows)),
        column_tiles(divide_up(width, tile_columns)),
        block(even_part(tokens, kBlockKeys)) {}

  int64_t batch, height, width, heads, channels, tokens;
  int64_t tile_rows, strip, tile_columns;  // `strip` is the number of biases in the strip of one column
  int64_t row_tiles, column_tiles;
  int64_t block;  // keys in a block
};

// Queries of one head and image in a rectangle of the grid, ordered by columns.
struct Tile {
  Tile(const Sizes& s, int64_t index)
      : top(index % s.row_tiles * s.tile_rows),
        left(index / s.row_tiles * s.tile_columns),
        rows(std::min(s.tile_rows, s.height - top)),
        columns(std::min(s.tile_columns, s.width - left)) {}

  int64_t queries() const { return rows * columns; }

  int64_t top, left, rows, columns;
};

// A (B, N, heads, d) tensor of tokens, whose channels lie side by side.
template <typename T>
struct Tokens {
  explicit Tokens(const Tensor& tensor)  // (B, H, W, heads, d)
      : flat(tensor.flatten(1, 2)) {
    if (flat.stride(3) != 1) flat = flat.contiguous();
    data = flat.const_data_ptr<T>();
  }

  const T* at(int64_t image, int64_t head, int64_t token) const {
    return data + image * flat.stride(0) + token * flat.stride(1) + head * flat.stride(2);
  }
  // `count` tokens as a matrix.
  Tensor matrix(int64_t image, int64_t head, int64_t first, int64_t count) const {
    return flat.select(0, image).select(1, head).narrow(0, first, count);
  }

  Tensor flat;
  const T* data;
};

// A matrix over memory of a workspace or of a result.
template <typename T>
Tensor matrix(T* data, int64_t rows, int64_t columns) {
  const Device cpu(torch::headeronly::kCPU);
  return torch::stable::from_blob(data, {rows, columns}, {columns, 1}, cpu, scalar_type_of<T>);
}

// product = a b, and sum += a b.
void multiply(const Tensor& product, const Tensor& a, const Tensor& b) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(product.get(), a.get(), b.get()));
}
void add_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(sum.get(), sum.get(), a.get(), b.get(), 1, 1));
}

// Calls function(query, token) for each query of a tile, with its indices in the tile and in the grid.
template <typename Function>
void for_queries(const Sizes& s, const Tile& tile, const Function& function) {
  int64_t query = 0;
  for (int64_t j = tile.left; j < tile.left + tile.columns; ++j)
    for (int64_t i = tile.top; i < tile.top + tile.rows; ++i) function(query++, i * s.width + j);
}

// Calls function(strip, table, count) for each row of the strips of a tile, which has `count` biases: with the
// indices of the first among the strips and in the table of a head, (2 H - 1, 2 W - 1) biases of the offsets (key -
// query).
template <typename Function>
void for_strips(const Sizes& s, const Tile& tile, const Function& function) {
  for (int64_t column = 0; column < tile.columns; ++column)
    for (int64_t row = 0; row < s.height + tile.rows - 1; ++row) {
      const int64_t offset = row - (tile.top + tile.rows - 1);  // the first key's row minus that of a query
      const int64_t in_table = (offset + s.height - 1) * (2 * s.width - 1) + s.width - 1 - (tile.left + column);
      function(column * s.strip + row * s.width, in_table, s.width);
    }
}

// A tile of queries and a block of keys. The kernels take it by value, which keeps its members in registers.
template <typename T>
struct Block {
  // The index in the strips of the bias of a query and the first key of the block.
  BIOATTN_INLINE int64_t start(int64_t query) const {
    return query / rows * strip + (rows - 1 - query % rows) * width + first;
  }

  T* logits;        // (queries, keys)
  const T* strips;  // biases of the tile
  int64_t queries, first, keys;
  int64_t rows, width, strip;  // rows of the tile, of which each column of queries has one strip
};

template <typename T>
struct ForwardBlock : Block<T> {
  T *highest, *sum, *output;  // maximum and sum of each query over the keys so far, and weighted sums (queries, d)
  int64_t channels;
};

template <typename T>
struct BackwardBlock : Block<T> {
  const T *logsumexp, *mean;  // `mean` is a query's mean of the weights' gradients under the weights
  T *grad_logits, *grad_strips;
};

// Turns the products of a block into exponentials, and scales the sums so far to their new maximum.
template <typename T>
BIOATTN_KERNEL void compute_weights(const ForwardBlock<T> b) {
  for (int64_t query = 0; query < b.queries; ++query) {
    T* logits = b.logits + query * b.keys;
    const T* bias = b.strips + b.start(query);
    T highest = b.highest[query];
#pragma omp simd reduction(max : highest)
    for (int64_t k = 0; k < b.keys; ++k) {
      logits[k] += bias[k];
      highest = logits[k] > highest ? logits[k] : highest;
    }
    const T factor = exponential(b.highest[query] - highest);
    b.highest[query] = highest;
    b.sum[query] = b.sum[query] * factor + exponentiate(logits, b.keys, highest);
    T* output = b.output + query * b.channels;
    for (int64_t c = 0; c < b.channels; ++c) output[c] *= factor;
  }
}

// Turns the products of a block into weights in `logits`, and the gradients of the weights in `grad_logits` into
// those of the logits, which are added to the gradients of the biases.
template <typename T>
BIOATTN_KERNEL void compute_gradients(const BackwardBlock<T> b) {
  for (int64_t query = 0; query < b.queries; ++query) {
    T* logits = b.logits + query * b.keys;
    T* grad_logits = b.grad_logits + query * b.keys;
    const T* bias = b.strips + b.start(query);
    T* grad_bias = b.grad_strips + b.start(query);
    const T shift = b.logsumexp[query], mean = b.mean[query];
#pragma omp simd
    for (int64_t k = 0; k < b.keys; ++k) {
      logits[k] = exponential(logits[k] + bias[k] - shift);
      grad_logits[k] = logits[k] * (grad_logits[k] - mean);
      grad_bias[k] += grad_logits[k];
    }
  }
}

template <typename T>
void forward(
    const Tokens<T>& query, const Tokens<T>& key, const Tokens<T>& value, const Tensor& table, T scale,
    const Sizes& s, Tensor& output, Tensor& logsumexp) {
  const int64_t tiles = s.row_tiles * s.column_tiles, queries = s.tile_rows * s.tile_columns;
  const T* table_data = table.const_data_ptr<T>();
  T* output_data = output.mutable_data_ptr<T>();
  T* logsumexp_data = logsumexp.mutable_data_ptr<T>();
  parallel_for(0, s.batch * s.heads * tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> tile_query(queries * s.channels), tile_output(queries * s.channels), logits(queries * s.block),
        highest(queries), sum(queries), strips(s.tile_columns * s.strip);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image = task / tiles / s.heads, head = task / tiles % s.heads;
      const Tile tile(s, task % tiles);
      const T* head_table = table_data + head * table.stride(0);
      for_strips(s, tile, [&](int64_t strip, int64_t start, int64_t count) {
        std::copy_n(head_table + start, count, strips.data() + strip);
      });
      for_queries(s, tile, [&](int64_t number, int64_t token) {
        const T* source = query.at(image, head, token);
        for (int64_t c = 0; c < s.channels; ++c) tile_query[number * s.channels + c] = scale * source[c];
      });
      std::fill(tile_output.begin(), tile_output.end(), T(0));
      std::fill(sum.begin(), sum.end(), T(0));
      // This is not -inf, so that the difference of two maxima is not NaN even where all biases are -inf.
      std::fill(highest.begin(), highest.end(), std::numeric_limits<T>::lowest());

      const Tensor queries_matrix = matrix(tile_query.data(), tile.queries(), s.channels);
      Tensor output_matrix = matrix(tile_output.data(), tile.queries(), s.channels);
      for (int64_t first = 0; first < s.tokens; first += s.block) {
        const int64_t keys = std::min(s.block, s.tokens - first);
        Tensor weights = matrix(logits.data(), tile.queries(), keys);
        multiply(weights, queries_matrix, key.matrix(image, head, first, keys).transpose(0, 1));
        compute_weights(
            ForwardBlock<T>{
                {logits.data(), strips.data(), tile.queries(), first, keys, tile.rows, s.width, s.strip},
                highest.data(),
                sum.data(),
                tile_output.data(),
                s.channels});
        add_product(output_matrix, weights, value.matrix(image, head, first, keys));
      }
      for_queries(s, tile, [&](int64_t number, int64_t token) {
        const int64_t start = (image * s.tokens + token) * s.heads + head;
        const T factor = 1 / sum[number];
        for (int64_t c = 0; c < s.channels; ++c)
          output_data[start * s.channels + c] = factor * tile_output[number * s.channels + c];
        logsumexp_data[start] = highest[number] + std::log(sum[number]);
      });
    }
  });
}

// The gradients that a task adds to. All are contiguous.
template <typename T>
struct Gradients {
  T *query, *key, *value;  // (B, heads, N, d)
  T* table;                // (B, heads, 2 H - 1, 2 W - 1)
};

template <typename T>
void backward(
    const Tokens<T>& grad_output, const Tokens<T>& query, const Tokens<T>& key, const Tokens<T>& value,
    const Tensor& table, const Tokens<T>& output, const Tensor& logsumexp, T scale, const Sizes& s,
    const Gradients<T>& grad) {
  const int64_t tiles = s.row_tiles * s.column_tiles, queries = s.tile_rows * s.tile_columns;
  const T *table_data = table.const_data_ptr<T>(), *logsumexp_data = logsumexp.const_data_ptr<T>();
  parallel_for(0, s.batch * s.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> tile_query(queries * s.channels), tile_grad_output(queries * s.channels),
        tile_grad_query(queries * s.channels), logits(queries * s.block), grad_logits(queries * s.block),
        tile_logsumexp(queries), mean(queries), strips(s.tile_columns * s.strip), grad_strips(strips.size());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image = task / s.heads, head = task % s.heads;
      const T* head_table = table_data + head * table.stride(0);
      T* grad_table = grad.table + task * table.stride(0);
      T* grad_query = grad.query + task * s.tokens * s.channels;
      for (int64_t index = 0; index < tiles; ++index) {
        const Tile tile(s, index);
        for_strips(s, tile, [&](int64_t strip, int64_t start, int64_t count) {
          std::copy_n(head_table + start, count, strips.data() + strip);
        });
        std::fill(grad_strips.begin(), grad_strips.end(), T(0));
        for_queries(s, tile, [&](int64_t number, int64_t token) {
          const T *source = query.at(image, head, token), *grad_source = grad_output.at(image, head, token);
          for (int64_t c = 0; c < s.channels; ++c) tile_query[number * s.channels + c] = scale * source[c];
          std::copy_n(grad_source, s.channels, tile_grad_output.data() + number * s.channels);
          tile_logsumexp[number] = logsumexp_data[(image * s.tokens + token) * s.heads + head];
          mean[number] = dot(grad_source, output.at(image, head, token), s.channels);
        });
        std::fill(tile_grad_query.begin(), tile_grad_query.end(), T(0));

        const Tensor queries_matrix = matrix(tile_query.data(), tile.queries(), s.channels);
        const Tensor grad_output_matrix = matrix(tile_grad_output.data(), tile.queries(), s.channels);
        Tensor grad_query_matrix = matrix(tile_grad_query.data(), tile.queries(), s.channels);
        for (int64_t first = 0; first < s.tokens; first += s.block) {
          const int64_t keys = std::min(s.block, s.tokens - first);
          const Tensor key_matrix = key.matrix(image, head, first, keys);
          Tensor weights = matrix(logits.data(), tile.queries(), keys);
          Tensor grad_weights = matrix(grad_logits.data(), tile.queries(), keys);
          multiply(weights, queries_matrix, key_matrix.transpose(0, 1));
          multiply(grad_weights, grad_output_matrix, value.matrix(image, head, first, keys).transpose(0, 1));
          compute_gradients(
              BackwardBlock<T>{
                  {logits.data(), strips.data(), tile.queries(), first, keys, tile.rows, s.width, s.strip},
                  tile_logsumexp.data(),
                  mean.data(),
                  grad_logits.data(),
                  grad_strips.data()});
          const int64_t start = (task * s.tokens + first) * s.channels;
          Tensor grad_key = matrix(grad.key + start, keys, s.channels);
          Tensor grad_value = matrix(grad.value + start, keys, s.channels);
          add_product(grad_value, weights.transpose(0, 1), grad_output_matrix);
          add_product(grad_key, grad_weights.transpose(0, 1), queries_matrix);
          add_product(grad_query_matrix, grad_weights, key_matrix);
        }
        for_strips(s, tile, [&](int64_t strip, int64_t start, int64_t count) {
          add_scaled(grad_table + start, T(1), grad_strips.data() + strip, count);
        });
        for_queries(s, tile, [&](int64_t number, int64_t token) {
          for (int64_t c = 0; c < s.channels; ++c)
            grad_query[token * s.channels + c] = scale * tile_grad_query[number * s.channels + c];
        });
      }
    }
  });
}

// The bias by the offset (key - query) instead of (query - key), so that the biases of neighbouring keys are
// neighbours.
Tensor flip(const Tensor& bias) { return bias.flip({-2, -1}).contiguous(); }

}  // namespace

std::tuple<Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, double scale) {
  Tensor output = empty(query.sizes(), query.options());
  Tensor logsumexp = empty(query.sizes().slice(0, 4), query.options());
  if (logsumexp.numel() == 0) return {output, logsumexp};
  dispatch<float, double>(query.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    forward<scalar_t>(
        Tokens<scalar_t>(query), Tokens<scalar_t>(key), Tokens<scalar_t>(value), flip(bias), scale, Sizes(query),
        output, logsumexp);
  });
  return {output, logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& output, const Tensor& logsumexp, double scale) {
  const Sizes s(query);
  const auto make_zeros = [&] { return zeros({s.batch, s.heads, s.tokens, s.channels}, query.options()); };
  const Tensor grad_query = make_zeros(), grad_key = make_zeros(), grad_value = make_zeros();
  const Tensor grad_table = zeros({s.batch, s.heads, bias.size(1), bias.size(2)}, bias.options());
  if (logsumexp.numel() > 0) {
    dispatch<float, double>(query.scalar_type(), [&](auto zero) {
      using scalar_t = decltype(zero);
      const Gradients<scalar_t> grad{
          grad_query.mutable_data_ptr<scalar_t>(), grad_key.mutable_data_ptr<scalar_t>(),
          grad_value.mutable_data_ptr<scalar_t>(), grad_table.mutable_data_ptr<scalar_t>()};
      backward<scalar_t>(
          Tokens<scalar_t>(grad_output), Tokens<scalar_t>(query), Tokens<scalar_t>(key), Tokens<scalar_t>(value),
          flip(bias), Tokens<scalar_t>(output), logsumexp.contiguous(), scale, s, grad);
    });
  }
  const auto to_grid = [&](const Tensor& gradient) {
    return gradient.transpose(1, 2).contiguous().view(query.sizes());
  };
  return {to_grid(grad_query), to_grid(grad_key), to_grid(grad_value), flip(grad_table.sum({0}))};
}

}  // namespace bioattn_mm::BIOATTN_ISA::relative_bias_attention
