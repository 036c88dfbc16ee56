// Aggregated attention of one group of queries: neighbours in a row, one in each lane of a vector.
//
// Tokens lie in planes, one for each channel, in which neighbours in a row are neighbours in memory. So every step is
// elementwise for the queries of a group: products with a pooled key multiply vectors by its channels, products with
// the keys of the window read the planes shifted by a column, biases of a pooled key are neighbours in their table, and
// norms and softmax are sums of vectors.
#pragma once

#include "vectors.h"

#include <limits>

namespace bioattn_mm {

// Pooled keys of a block: so many sums stay in registers.
constexpr int64_t kBlock = 8;
// As in torch.nn.functional.normalize of the layer.
constexpr double kSmallestNorm = 1e-6;

// Planes of tokens that become unit vectors; in lanes that hold no token they are 0.
template <typename T>
struct UnitVectors {
  T *tokens, *inverse_norms;  // (d, stride) and (stride)
  int64_t channels, stride;
};

// Planes of queries; `scaled` = (unit + query_embedding) * factor.
template <typename T>
struct ScaledQueries {
  const T *unit, *query_embedding, *factors;  // (d, stride), (d), (stride)
  T* scaled;                                  // (d, stride)
  int64_t channels, stride;
};

template <typename T>
struct Group {
  int64_t channels, offsets, window, blocks;  // d, k * k, k, blocks of pooled keys
  int64_t query_stride, key_stride;
  const T *query, *unit_query;                 // planes with `query_stride`
  const T* const* keys;                        // (k) planes with `key_stride` of the window's rows, from the window's first
  const T* const* values;                      //     column of the first query; null outside of the image
  const T* outside;                            // (k, lanes), -inf where a column of the window is outside of the image
  const T* const* pooled_bias;                 // (pooled keys) biases of the group's queries
  const T *pooled_key, *pooled_value;          // blocks (d, kBlock) and rows (d padded to kBlock)
  const T *window_bias, *tokens, *token_bias;  // (k * k), (d, k * k), (k * k)
  T *pooled, *window_weights, *token_weights;  // (pooled keys, lanes), (k * k, lanes), (k * k, lanes): logits, then weights
  T *output, *logsumexp;                       // (d padded, lanes), (lanes)
};

template <typename T>
struct GradientGroup : Group<T> {
  int64_t row_channels;                            // d padded to whole vectors
  const T* grad_output;                            // planes with `query_stride`
  const T *query_rows, *grad_output_rows;          // (lanes, row_channels)
  const T *pooled_value_blocks, *pooled_key_rows;  // blocks (d, kBlock) and rows (d padded to kBlock)
  T* const* grad_pooled_bias;                      // (pooled keys)
  T *grad_pooled, *grad_window, *grad_tokens;      // of the logits, and of the token weights
  T* grad_query;                                   // (d padded, lanes)
  T *pooled_key_sums, *pooled_value_sums;          // (pooled keys, row_channels)
};

// The gradient of what UnitVectors and ScaledQueries compute, for the lanes of one group, and sums for that of the
// parameters.
template <typename T>
struct QueryGradient {
  int64_t channels, offsets, stride;
  const T *unit, *inverse_norms, *factors, *log_lengths;  // `unit` with `stride`, the rest (lanes)
  const T *query_embedding, *tokens, *grad_tokens;        // (d), (d, k * k), (k * k, lanes)
  T* gradient;                                            // (d, lanes), of the scaled query; then of the query
  T *embedding_sums, *scale_sums, *token_sums;            // (d, lanes), (lanes), (d, k * k, lanes)
};

// Gradients of the keys and values of a group of neighbours, gathered from the queries in whose windows they are.
template <typename T>
struct WindowGradients {
  int64_t channels, offsets, window, stride, padded_width;
  const T* const* queries;       // (k) planes with `stride` of the rows of queries, as Group::keys
  const T* const* grad_outputs;  // the same
  const T* const* grad_window;   // (k) for each row of queries (k * k, padded_width), from the first column
  const T* const* factors;       // the same: the weights of the values
  T *grad_key, *grad_value;      // (d, lanes)
};

template <typename T>
struct UnitGradient {
  int64_t channels;
  const T *unit, *inverse_norms;  // (d, lanes), (lanes)
  T* gradient;                    // (d, lanes), of the unit vectors; then of the vectors
};

template <typename T>
BIOATTN_INLINE void make_unit_body(const UnitVectors<T>& u) {
  for (int64_t first = 0; first < u.stride; first += kLanes<T>) {
    Vector<T> squares = {};
    for (int64_t c = 0; c < u.channels; ++c) {
      const Vector<T> x = load(u.tokens + c * u.stride + first);
      squares += x * x;
    }
    T* inverse = u.inverse_norms + first;
    store(inverse, squares);
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
      const T norm = std::sqrt(inverse[lane]);
      inverse[lane] = 1 / (norm < T(kSmallestNorm) ? T(kSmallestNorm) : norm);
    }
    const Vector<T> factor = load(inverse);
    for (int64_t c = 0; c < u.channels; ++c) {
      T* x = u.tokens + c * u.stride + first;
      store(x, load(x) * factor);
    }
  }
}

template <typename T>
BIOATTN_INLINE void scale_queries_body(const ScaledQueries<T>& q) {
  for (int64_t c = 0; c < q.channels; ++c)
    for (int64_t first = 0; first < q.stride; first += kLanes<T>) {
      const int64_t place = c * q.stride + first;
      store(q.scaled + place, (load(q.unit + place) + q.query_embedding[c]) * load(q.factors + first));
    }
}

// products[p] = query . key[p] for blocks of keys
template <typename T>
BIOATTN_INLINE void multiply_by_blocks(
    T* products, const T* query, int64_t stride, const T* keys, int64_t blocks, int64_t channels) {
  for (int64_t block = 0; block < blocks; ++block) {
    Vector<T> sums[kBlock] = {};
    for (int64_t c = 0; c < channels; ++c, keys += kBlock) {
      const Vector<T> x = load(query + c * stride);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) sums[k] += x * keys[k];
    }
#pragma GCC unroll 8
    for (int64_t k = 0; k < kBlock; ++k, products += kLanes<T>) store(products, sums[k]);
  }
}

// sums[c] = sum over p of weights[p] * rows[p][c], for rows of channels padded to blocks
template <typename T>
BIOATTN_INLINE void sum_rows(T* sums, const T* weights, const T* rows, int64_t number, int64_t channels) {
  const int64_t padded = (channels + kBlock - 1) / kBlock * kBlock;
  for (int64_t first = 0; first < padded; first += kBlock) {
    Vector<T> sum[kBlock] = {};
    for (int64_t p = 0; p < number; ++p) {
      const Vector<T> weight = load(weights + p * kLanes<T>);
      const T* row = rows + p * padded + first;
#pragma GCC unroll 8
      for (int64_t c = 0; c < kBlock; ++c) sum[c] += weight * row[c];
    }
#pragma GCC unroll 8
    for (int64_t c = 0; c < kBlock; ++c) store(sums + (first + c) * kLanes<T>, sum[c]);
  }
}

// sums[p][c] += sum over lanes of weights[p][lane] * rows[lane][c]
template <typename T>
BIOATTN_INLINE void add_outer_products(T* sums, const T* weights, const T* rows, int64_t number, int64_t row_channels) {
  for (int64_t p = 0; p < number; p += kBlock) {
    for (int64_t first = 0; first < row_channels; first += kLanes<T>) {
      T* target = sums + p * row_channels + first;
      Vector<T> sum[kBlock];
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) sum[k] = load(target + k * row_channels);
      for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
        const Vector<T> row = load(rows + lane * row_channels + first);
        const T* weight = weights + p * kLanes<T> + lane;
#pragma GCC unroll 8
        for (int64_t k = 0; k < kBlock; ++k) sum[k] += row * weight[k * kLanes<T>];
      }
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) store(target + k * row_channels, sum[k]);
    }
  }
}

// The pooled and window logits; returns the highest.
template <typename T>
BIOATTN_INLINE Vector<T> compute_logits(const Group<T>& g) {
  multiply_by_blocks(g.pooled, g.query, g.query_stride, g.pooled_key, g.blocks, g.channels);
  Vector<T> highest = Vector<T>{} - std::numeric_limits<T>::infinity();
  for (int64_t p = 0; p < g.blocks * kBlock; ++p) {
    const Vector<T> logit = load(g.pooled + p * kLanes<T>) + load(g.pooled_bias[p]);
    store(g.pooled + p * kLanes<T>, logit);
    highest = highest > logit ? highest : logit;
  }
  for (int64_t dy = 0; dy < g.window; ++dy) {
    for (int64_t dx = 0; dx < g.window; ++dx) {
      const int64_t offset = dy * g.window + dx;
      Vector<T> logit = load(g.outside + dx * kLanes<T>) + g.window_bias[offset];
      if (g.keys[dy] == nullptr) {
        logit = Vector<T>{} - std::numeric_limits<T>::infinity();
      } else {
        for (int64_t c = 0; c < g.channels; ++c)
          logit += load(g.query + c * g.query_stride) * load(g.keys[dy] + c * g.key_stride + dx);
      }
      store(g.window_weights + offset * kLanes<T>, logit);
      highest = highest > logit ? highest : logit;
    }
  }
  return highest;
}

// x = exp(x - shift) for `number` vectors; returns their sum.
template <typename T>
BIOATTN_INLINE Vector<T> exponentiate_lanes(T* x, int64_t number, const Vector<T>& shift) {
  T shifts[kLanes<T>], sums[kLanes<T>] = {};
  store(shifts, shift);
  for (int64_t p = 0; p < number; ++p, x += kLanes<T>) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
      x[lane] = exponential(x[lane] - shifts[lane]);
      sums[lane] += x[lane];
    }
  }
  return load(sums);
}

// Token weights: products of the unit queries and the learnable tokens.
template <typename T>
BIOATTN_INLINE void compute_token_weights(const Group<T>& g) {
  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    Vector<T> sum = Vector<T>{} + g.token_bias[offset];
    for (int64_t c = 0; c < g.channels; ++c)
      sum += load(g.unit_query + c * g.query_stride) * g.tokens[c * g.offsets + offset];
    store(g.token_weights + offset * kLanes<T>, sum);
  }
}

template <typename T>
BIOATTN_INLINE void attend_body(const Group<T>& g) {
  if (g.tokens) compute_token_weights(g);
  const Vector<T> highest = compute_logits(g);
  Vector<T> sum = exponentiate_lanes(g.pooled, g.blocks * kBlock, highest);
  sum += exponentiate_lanes(g.window_weights, g.offsets, highest);
  const Vector<T> scale = 1 / sum;
  store(g.logsumexp, sum);
  for (int64_t lane = 0; lane < kLanes<T>; ++lane) g.logsumexp[lane] = std::log(g.logsumexp[lane]);
  add_to(g.logsumexp, highest);

  sum_rows(g.output, g.pooled, g.pooled_value, g.blocks * kBlock, g.channels);
  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    T* weight = g.window_weights + offset * kLanes<T>;
    store(weight, load(weight) * scale + load(g.token_weights + offset * kLanes<T>));
  }
  for (int64_t c = 0; c < g.channels; ++c) {
    Vector<T> output = load(g.output + c * kLanes<T>) * scale;
    for (int64_t dy = 0; dy < g.window; ++dy) {
      if (g.values[dy] == nullptr) continue;
      for (int64_t dx = 0; dx < g.window; ++dx)
        output += load(g.window_weights + (dy * g.window + dx) * kLanes<T>) * load(g.values[dy] + c * g.key_stride + dx);
    }
    store(g.output + c * kLanes<T>, output);
  }
}

template <typename T>
BIOATTN_INLINE void differentiate_body(const GradientGroup<T>& g) {
  const int64_t pooled = g.blocks * kBlock;
  if (g.tokens) compute_token_weights(g);
  compute_logits(g);
  const Vector<T> shift = load(g.logsumexp);
  exponentiate_lanes(g.pooled, pooled, shift);
  exponentiate_lanes(g.window_weights, g.offsets, shift);
  multiply_by_blocks(g.grad_pooled, g.grad_output, g.query_stride, g.pooled_value_blocks, g.blocks, g.channels);

  // The gradient of a logit is weight * (gradient of the weight - mean of these under the weights).
  Vector<T> mean = {};
  for (int64_t p = 0; p < pooled; ++p) mean += load(g.pooled + p * kLanes<T>) * load(g.grad_pooled + p * kLanes<T>);
  for (int64_t dy = 0; dy < g.window; ++dy) {
    for (int64_t dx = 0; dx < g.window; ++dx) {
      const int64_t place = (dy * g.window + dx) * kLanes<T>;
      Vector<T> sum = {};
      if (g.values[dy] != nullptr)
        for (int64_t c = 0; c < g.channels; ++c)
          sum += load(g.grad_output + c * g.query_stride) * load(g.values[dy] + c * g.key_stride + dx);
      store(g.grad_tokens + place, sum);
      mean += load(g.window_weights + place) * sum;
    }
  }
  for (int64_t p = 0; p < pooled; ++p) {
    T* gradient = g.grad_pooled + p * kLanes<T>;
    const Vector<T> logit = load(g.pooled + p * kLanes<T>) * (load(gradient) - mean);
    store(gradient, logit);
    add_to(g.grad_pooled_bias[p], logit);
  }
  sum_rows(g.grad_query, g.grad_pooled, g.pooled_key_rows, pooled, g.channels);
  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    const int64_t place = offset * kLanes<T>;
    const Vector<T> weight = load(g.window_weights + place);
    store(g.grad_window + place, weight * (load(g.grad_tokens + place) - mean));
    store(g.window_weights + place, weight + load(g.token_weights + place));
  }
  for (int64_t c = 0; c < g.channels; ++c) {
    Vector<T> sum = load(g.grad_query + c * kLanes<T>);
    for (int64_t dy = 0; dy < g.window; ++dy) {
      if (g.keys[dy] == nullptr) continue;
      for (int64_t dx = 0; dx < g.window; ++dx)
        sum += load(g.grad_window + (dy * g.window + dx) * kLanes<T>) * load(g.keys[dy] + c * g.key_stride + dx);
    }
    store(g.grad_query + c * kLanes<T>, sum);
  }
  add_outer_products(g.pooled_value_sums, g.pooled, g.grad_output_rows, pooled, g.row_channels);
  add_outer_products(g.pooled_key_sums, g.grad_pooled, g.query_rows, pooled, g.row_channels);
}

// The gradient through x / max(norm, kSmallestNorm).
template <typename T>
BIOATTN_INLINE void differentiate_norm(
    T* gradient, const T* unit, int64_t stride, const T* inverse_norms, int64_t channels) {
  const Vector<T> inverse = load(inverse_norms);
  Vector<T> along = {};
  for (int64_t c = 0; c < channels; ++c) along += load(gradient + c * kLanes<T>) * load(unit + c * stride);
  // Below the smallest norm, the factor is constant.
  along = inverse < T(0.99999 / kSmallestNorm) ? along : Vector<T>{};
  for (int64_t c = 0; c < channels; ++c) {
    T* x = gradient + c * kLanes<T>;
    store(x, inverse * (load(x) - load(unit + c * stride) * along));
  }
}

template <typename T>
BIOATTN_INLINE void differentiate_query_body(const QueryGradient<T>& q) {
  const Vector<T> factor = load(q.factors), log_length = load(q.log_lengths);
  Vector<T> scale_sum = {};
  for (int64_t c = 0; c < q.channels; ++c) {
    const Vector<T> gradient = load(q.gradient + c * kLanes<T>), unit = load(q.unit + c * q.stride);
    scale_sum += gradient * (unit + q.query_embedding[c]);
    Vector<T> sum = gradient * factor;
    add_to(q.embedding_sums + c * kLanes<T>, sum);
    for (int64_t offset = 0; offset < q.offsets; ++offset) {
      const Vector<T> grad_token = load(q.grad_tokens + offset * kLanes<T>);
      sum += grad_token * q.tokens[c * q.offsets + offset];
      add_to(q.token_sums + (c * q.offsets + offset) * kLanes<T>, grad_token * unit);
    }
    store(q.gradient + c * kLanes<T>, sum);
  }
  add_to(q.scale_sums, scale_sum * log_length);
  differentiate_norm(q.gradient, q.unit, q.stride, q.inverse_norms, q.channels);
}

template <typename T>
BIOATTN_INLINE void gather_gradients_body(const WindowGradients<T>& g) {
  for (int64_t c = 0; c < g.channels; ++c) {
    Vector<T> key = {}, value = {};
    for (int64_t dy = 0; dy < g.window; ++dy) {
      if (g.queries[dy] == nullptr) continue;
      for (int64_t dx = 0; dx < g.window; ++dx) {
        // In the window of that query, this token has the opposite offset.
        const int64_t place = (g.offsets - 1 - dy * g.window - dx) * g.padded_width + dx;
        key += load(g.grad_window[dy] + place) * load(g.queries[dy] + c * g.stride + dx);
        value += load(g.factors[dy] + place) * load(g.grad_outputs[dy] + c * g.stride + dx);
      }
    }
    store(g.grad_key + c * kLanes<T>, key);
    store(g.grad_value + c * kLanes<T>, value);
  }
}

template <typename T>
BIOATTN_INLINE void differentiate_unit_body(const UnitGradient<T>& u) {
  differentiate_norm(u.gradient, u.unit, kLanes<T>, u.inverse_norms, u.channels);
}

}  // namespace bioattn_mm
