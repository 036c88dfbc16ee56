// Peripheral attention on the CPU, fused: log Phi_p and weights exist for one block of queries at a time.
// Arrays over a query's keys are flat: rows have W + 2 positions (`pitch`), so that the inputs of a 3 x 3 convolution
// are at fixed distances from its output, and loops run over whole vectors; the last two of a row are not used. In
// the backward pass every task owns all gradients that it adds to: sums do not depend on the threads.
#pragma once

#include "kernels.h"

namespace bioattn_mm::BIOATTN_ISA::peripheral_attention {
namespace {

// Convolutions and matrix products keep kGroup x kColumns sums in half of the registers.
constexpr int64_t kGroup = 4, kColumns = kRegisters / 2 / kGroup * kVectorBytes / sizeof(float);
constexpr int64_t kHalfColumns = kColumns / 2;  // the fewest columns of a matrix that are computed together
constexpr int64_t kSteps = 128;                 // steps of a matrix product for which its second factor stays in L1
constexpr int64_t kTaps = 9;
constexpr int64_t kPositions = 16;       // positions that a step of the other loops computes
constexpr int64_t kChunk = 1024;         // positions for which the operands of weight gradients stay in L1
constexpr int64_t kQueries = 32;         // queries of a block
constexpr int64_t kBandPairs = 1 << 20;  // pairs of query and key, of all heads, in a band of the backward pass
constexpr int64_t kSlices = 4;           // parts of a band whose gradients of the plane are summed separately
constexpr int64_t kKeys = 512;           // keys whose gradients are a task of their own

struct Sizes {
  explicit Sizes(const PeripheralInputs& inputs)
      : batch(inputs.query.size(0)),
        heads(inputs.query.size(1)),
        tokens(inputs.query.size(2)),
        head_dims(inputs.query.size(3)),
        hidden(inputs.plane.size(0)),
        height(inputs.scale.size(1)),
        width(inputs.scale.size(2)),
        logit_scale(1 / std::sqrt(static_cast<double>(head_dims))) {}

  // The queries run from the first to the last token, and their windows backwards over the plane.
  int64_t window_of(int64_t query) const { return tokens - 1 - query; }
  // The index in a channel of the plane at which the window of a query starts.
  int64_t window_start(int64_t query) const {
    const int64_t index = window_of(query);
    return index / width * plane_pitch + index % width;
  }
  // The index of a token in (B, heads, H * W).
  int64_t token(int64_t image, int64_t head, int64_t number) const {
    return (image * heads + head) * tokens + number;
  }

  int64_t batch, heads, tokens, head_dims, hidden, height, width;
  double logit_scale;  // the factor of the products of queries and keys
  int64_t pitch = width + 2, plane_pitch = 2 * width + 1;
  // The elements of a channel of the plane, padded so that whole vectors can be read at its end.
  int64_t plane_stride = (2 * height + 1) * plane_pitch + kPositions;
  int64_t head_groups = divide_up(heads, kGroup), hidden_groups = divide_up(hidden, kGroup);
  int64_t convolved = height * pitch, window = (height + 2) * pitch;  // positions after and before the convolution
  int64_t margin = 2 * pitch + 2;  // farthest distance from an output of a convolution to an input
  // The first position of a gradient that has a margin of zeros before it; whole vectors.
  int64_t gradient_start = round_up(margin, kPositions);
  // The elements of a channel in the flat arrays, margin included.
  int64_t stride = round_up(window, kColumns) + gradient_start + kPositions;
  int64_t padded_dims = round_up(head_dims, kHalfColumns);  // columns of matrices of tokens
  // Rows over the keys are some more than whole blocks: at a distance of a power of two they would share cache sets.
  int64_t key_blocks = divide_up(tokens, kColumns), key_stride = key_blocks * kColumns + kPositions;
};

// log(1 + x) for 0 <= x <= 1 to a unit in the last place, by the series of 2 artanh(x / (x + 2)).
BIOATTN_INLINE float log_one_plus(float x) {
  const float u = x / (x + 2.f), s = u * u;
  const float series = 1.f + s * (1.f / 3 + s * (1.f / 5 + s * (1.f / 7 + s * (1.f / 9 + s * (1.f / 11 + s / 13)))));
  return 2.f * u * series;
}

BIOATTN_INLINE double log_one_plus(double x) { return std::log1p(x); }

template <typename T>
BIOATTN_INLINE T log_sigmoid(T x) {
  return (x < 0 ? x : T(0)) - log_one_plus(exponential(x < 0 ? x : -x));
}

// sigmoid(-x), the derivative of log_sigmoid
template <typename T>
BIOATTN_INLINE T grad_log_sigmoid(T x) {
  const T e = exponential(x < 0 ? x : -x);
  return (x < 0 ? T(1) : e) / (1 + e);
}

// Computes relu(scale * plane + shift), flat, of one channel of a query's window; `plane` begins at its start.
template <typename T>
BIOATTN_KERNEL void compute_activation(const Sizes& s, const T* plane, T scale, T shift, T* activation) {
  for (int64_t i = 0; i < s.height + 2; ++i, plane += s.plane_pitch, activation += s.pitch) {
    // Elements written beyond the row are overwritten by the next row; those beyond the last row are not used.
    for (int64_t j = 0; j < s.pitch; j += kPositions) {
#pragma omp simd
      for (int64_t lane = 0; lane < kPositions; ++lane) {
        const T x = scale * plane[j + lane] + shift;
        activation[j + lane] = x < 0 ? T(0) : x;  // NaN stays NaN
      }
    }
  }
}

// A 3 x 3 convolution of flat arrays (inputs, stride) to (groups * kGroup, stride), whose output k has the inputs k
// to k + margin. The weights are (groups, inputs, kTaps, kGroup).
template <typename T>
BIOATTN_KERNEL void convolve(
    const Sizes& s, const T* inputs, int64_t number, const T* weights, T* outputs, int64_t groups, int64_t length) {
  for (int64_t first = 0; first < length; first += kColumns) {
    const T* weight = weights;
    for (int64_t group = 0; group < groups; ++group) {
      T sum[kGroup][kColumns] = {};
      for (int64_t input = 0; input < number; ++input) {
        for (int64_t dy = 0; dy < 3; ++dy) {
          const T* source = inputs + input * s.stride + first + dy * s.pitch;
          for (int64_t dx = 0; dx < 3; ++dx, ++source, weight += kGroup) {
            for (int64_t c = 0; c < kGroup; ++c) {
#pragma omp simd
              for (int64_t k = 0; k < kColumns; ++k) sum[c][k] += weight[c] * source[k];
            }
          }
        }
      }
      for (int64_t c = 0; c < kGroup; ++c)
        std::copy_n(sum[c], kColumns, outputs + (group * kGroup + c) * s.stride + first);
    }
  }
}

template <int64_t columns, typename T>
BIOATTN_INLINE void multiply_block(
    const T* a, int64_t a_row, int64_t a_step, const T* b, int64_t b_step, T* c, int64_t c_row, int64_t steps,
    bool adds) {
  T sum[kGroup][columns] = {};
  if (adds)
    for (int64_t row = 0; row < kGroup; ++row) std::copy_n(c + row * c_row, columns, sum[row]);
  for (int64_t step = 0; step < steps; ++step, a += a_step, b += b_step) {
    for (int64_t row = 0; row < kGroup; ++row) {
      const T factor = a[row * a_row];
#pragma omp simd
      for (int64_t k = 0; k < columns; ++k) sum[row][k] += factor * b[k];
    }
  }
  for (int64_t row = 0; row < kGroup; ++row) std::copy_n(sum[row], columns, c + row * c_row);
}

// c = a b, or where it adds c += a b, for a (rows, steps) and b (steps, columns): rows in kGroup, columns in
// kHalfColumns. Rows, steps, and blocks of kColumns columns are given with their distances in memory.
template <typename T>
BIOATTN_KERNEL void multiply(
    const T* a, int64_t a_row, int64_t a_step, const T* b, int64_t b_step, int64_t b_block, T* c, int64_t c_row,
    int64_t rows, int64_t steps, int64_t columns, bool adds = false) {
  for (int64_t column = 0; column < columns; column += kColumns)
    for (int64_t first = 0; first < steps; first += kSteps)
      for (int64_t row = 0; row < rows; row += kGroup) {
        const T *of_a = a + row * a_row + first * a_step, *of_b = b + column / kColumns * b_block + first * b_step;
        T* of_c = c + row * c_row + column;
        const int64_t number = std::min(kSteps, steps - first);
        if (columns - column < kColumns)
          multiply_block<kHalfColumns>(of_a, a_row, a_step, of_b, b_step, of_c, c_row, number, adds || first > 0);
        else
          multiply_block<kColumns>(of_a, a_row, a_step, of_b, b_step, of_c, c_row, number, adds || first > 0);
      }
}

// Computes the second instance norm of a query and head, and log Phi_p, (H * W) both. Returns 1 / deviation.
template <typename T>
BIOATTN_KERNEL T compute_norm(const Sizes& s, const T* convolved, T weight, T bias, T eps, T* x, T* log_phi) {
  for (int64_t i = 0; i < s.height; ++i) std::memcpy(x + i * s.width, convolved + i * s.pitch, s.width * sizeof(T));
  T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < s.tokens; ++k) sum += x[k];
  const T mean = sum / s.tokens;
#pragma omp simd reduction(+ : squares)
  for (int64_t k = 0; k < s.tokens; ++k) squares += (x[k] - mean) * (x[k] - mean);
  const T scale = 1 / std::sqrt(squares / s.tokens + eps);
#pragma omp simd
  for (int64_t k = 0; k < s.tokens; ++k) {
    x[k] = (x[k] - mean) * scale;
    log_phi[k] = log_sigmoid(x[k] * weight + bias);
  }
  return scale;
}

// Computes the gradient, flat, of the second convolution's output for a query and head, and the query's part of those
// of the norm's parameters. `grad_logit`, (H * W), is that of the sigmoid's argument.
template <typename T>
BIOATTN_KERNEL void compute_grad_norm(
    const Sizes& s, const T* grad_log_phi, const T* x, T weight, T bias, T inverse_deviation, T* grad_logit,
    T* grad_convolved, T* grad_weight, T* grad_bias) {
  T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t k = 0; k < s.tokens; ++k) {
    const T grad = grad_log_phi[k] * grad_log_sigmoid(x[k] * weight + bias);
    grad_logit[k] = grad;
    sum += grad;
    product += grad * x[k];
  }
  *grad_bias = sum;
  *grad_weight = product;
  const T factor = weight * inverse_deviation, mean = sum / s.tokens, slope = product / s.tokens;
  for (int64_t i = 0; i < s.height; ++i, grad_logit += s.width, x += s.width, grad_convolved += s.pitch) {
#pragma omp simd
    for (int64_t j = 0; j < s.width; ++j) grad_convolved[j] = factor * (grad_logit[j] - mean - slope * x[j]);
  }
}

// Turns logits without log_phi, (queries, key_stride), into exponentials; `scale` is one over their sum.
template <typename T>
BIOATTN_KERNEL void compute_softmax(
    const Sizes& s, const T* log_phi, T* logits, T* scale, T* logsumexp, int64_t queries) {
  for (int64_t query = 0; query < queries; ++query, log_phi += s.key_stride, logits += s.key_stride) {
    T highest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : highest)
    for (int64_t k = 0; k < s.tokens; ++k) {
      logits[k] += log_phi[k];
      highest = logits[k] > highest ? logits[k] : highest;
    }
    const T sum = exponentiate(logits, s.tokens, highest);
    scale[query] = 1 / sum;
    logsumexp[query] = highest + std::log(sum);
  }
}

// Turns such logits into weights, and gradients of the weights, `grad`, into those of the logits.
template <typename T>
BIOATTN_KERNEL void compute_grad_softmax(
    const Sizes& s, const T* log_phi, const T* logsumexp, T* weights, T* grad, T* grad_log_phi, int64_t queries) {
  for (int64_t query = 0; query < queries; ++query) {
    const T shift = logsumexp[query];
    T mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t k = 0; k < s.tokens; ++k) {
      weights[k] = exponential(weights[k] + log_phi[k] - shift);
      mean += weights[k] * grad[k];
    }
#pragma omp simd
    for (int64_t k = 0; k < s.tokens; ++k) {
      grad[k] = weights[k] * (grad[k] - mean);
      grad_log_phi[k] += grad[k];
    }
    log_phi += s.key_stride, weights += s.key_stride, grad += s.key_stride, grad_log_phi += s.key_stride;
  }
}

// Adds to the gradients of the second convolution's weight for kGroup hidden channels: gradients of its outputs,
// (head_groups * kGroup, stride), times its inputs, (kGroup, stride). Sums over positions are vectors.
template <typename T>
BIOATTN_KERNEL void add_grad_weight(const Sizes& s, const T* grad_convolved, const T* activation, T* all_sums) {
  for (int64_t first = 0; first < s.convolved; first += kChunk) {
    const int64_t end = std::min(first + kChunk, s.convolved);
    T* sums = all_sums;
    for (int64_t group = 0; group < s.head_groups; ++group) {
      const T* grad = grad_convolved + group * kGroup * s.stride;
      for (int64_t row = 0; row < 3 * kGroup; ++row, sums += kGroup * 3 * kPositions) {
        const T* input = activation + row / 3 * s.stride + row % 3 * s.pitch;
        T sum[kGroup * 3 * kPositions];
        std::memcpy(sum, sums, sizeof sum);
        for (int64_t k = first; k < end; k += kPositions) {
#pragma omp simd
          for (int64_t lane = 0; lane < kPositions; ++lane) {
            for (int64_t head = 0; head < kGroup; ++head) {
              const T factor = grad[head * s.stride + k + lane];
              for (int64_t dx = 0; dx < 3; ++dx)
                sum[(head * 3 + dx) * kPositions + lane] += factor * input[k + dx + lane];
            }
          }
        }
        std::memcpy(sums, sum, sizeof sum);
      }
    }
  }
}

// Adds to the gradient of the plane, and computes those of scale and shift; `inside` is 1 in a row, 0 behind it.
template <typename T>
BIOATTN_KERNEL void add_grad_plane(
    const Sizes& s, const T* activation, const T* grad, const T* plane, const T* inside, T scale, T* grad_plane,
    T* grad_scale, T* grad_shift) {
  T scale_sum[kPositions] = {}, shift_sum[kPositions] = {};
  for (int64_t i = 0; i < s.height + 2; ++i) {
    for (int64_t j = 0; j < s.pitch; j += kPositions) {
#pragma omp simd
      for (int64_t lane = 0; lane < kPositions; ++lane) {
        T masked = grad[j + lane] * inside[j + lane];
        masked = activation[j + lane] > 0 ? masked : T(0);
        shift_sum[lane] += masked;
        scale_sum[lane] += masked * plane[j + lane];
        grad_plane[j + lane] += masked * scale;
      }
    }
    activation += s.pitch, grad += s.pitch, plane += s.plane_pitch, grad_plane += s.plane_pitch;
  }
  *grad_scale = std::accumulate(scale_sum, scale_sum + kPositions, T(0));
  *grad_shift = std::accumulate(shift_sum, shift_sum + kPositions, T(0));
}

// Copies matrices (rows, columns) to blocks of rows, each (columns, block); the last one is filled up with zeros.
template <int64_t block, typename T>
Buffer<T> blocks_of(const T* source, int64_t matrices, int64_t rows, int64_t columns) {
  const int64_t size = divide_up(rows, block) * block * columns;
  Buffer<T> blocks(matrices * size);
  parallel_for(0, matrices, grain_of(size), [&](int64_t begin, int64_t end) {
    for (int64_t matrix = begin; matrix < end; ++matrix)
      for (int64_t row = 0; row < rows; ++row) {
        const T* of_row = source + (matrix * rows + row) * columns;
        T* target = blocks.data() + matrix * size + row / block * block * columns + row % block;
        for (int64_t column = 0; column < columns; ++column) target[column * block] = of_row[column];
      }
  });
  return blocks;
}

// Multiplies rows, and copies them to rows of `stride` elements, which end with zeros.
template <typename T>
Buffer<T> rows_of(const T* source, int64_t rows, int64_t columns, int64_t stride, T factor = 1) {
  Buffer<T> target(rows * stride);
  parallel_for(0, rows, grain_of(stride), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      scale_to(target.data() + row * stride, source + row * columns, columns, factor);
  });
  return target;
}

// The inputs that log Phi_p is computed from, and its steps.
template <typename T>
struct Position {
  Position(const PeripheralInputs& inputs, const Sizes& s, double eps) : inputs(inputs), s(s), eps(eps) {}

  // The part of the plane's channel that a query needs.
  const T* window(int64_t query, int64_t channel) const {
    return plane.data() + channel * s.plane_stride + s.window_start(query);
  }

  // Computes the hidden activations of a query, (stop - start, stride).
  void activate(int64_t query, int64_t start, int64_t stop, T* activation) const {
    for (int64_t channel = start; channel < stop; ++channel, activation += s.stride) {
      const int64_t index = channel * s.tokens + s.window_of(query);
      compute_activation(s, window(query, channel), scale[index], shift[index], activation);
    }
  }

  // Computes the hidden activations and their convolution, (head_groups * kGroup, stride); a norm needs no bias.
  void convolve_window(int64_t query, T* activation, T* convolved) const {
    activate(query, 0, s.hidden, activation);
    convolve(s, activation, s.hidden, weight.data(), convolved, s.head_groups, s.convolved);
  }

  // Computes the second norm and log Phi_p for a head, from the result of `convolve_window`, as compute_norm.
  T compute_log_phi(int64_t head, const T* convolved, T* normalized, T* log_phi) const {
    return compute_norm(s, convolved + head * s.stride, norm_weight[head], norm_bias[head], eps, normalized, log_phi);
  }

  const PeripheralInputs& inputs;
  const Sizes& s;
  const T eps;
  const Buffer<T> plane =  // (channels, plane_stride)
      rows_of<T>(DataOf{inputs.plane}, s.hidden, s.plane_stride - kPositions, s.plane_stride);
  // The weights of the second convolution in the layout that `convolve` reads.
  const Buffer<T> weight = blocks_of<kGroup, T>(DataOf{inputs.conv_weight}, 1, s.heads, (s.hidden * kTaps));
  const T *scale = DataOf{inputs.scale}, *shift = DataOf{inputs.shift};
  const T *norm_weight = DataOf{inputs.norm_weight}, *norm_bias = DataOf{inputs.norm_bias};
};

// Tokens as the second factor of a product over their channels: (B, heads, key_blocks, d, kColumns).
template <typename T>
Buffer<T> blocks_of_tokens(const Tensor& tokens, const Sizes& s) {
  return blocks_of<kColumns, T>(DataOf{tokens}, s.batch * s.heads, s.tokens, s.head_dims);
}

// Tokens (B, heads, H * W, padded_dims).
template <typename T>
Buffer<T> rows_of_tokens(const Tensor& tokens, const Sizes& s, double factor = 1) {
  return rows_of<T>(DataOf{tokens}, s.batch * s.heads * s.tokens, s.head_dims, s.padded_dims, static_cast<T>(factor));
}

// The part of an array (B, heads, ...) that belongs to an image and head.
template <typename Array>
auto* head_of(Array& array, const Sizes& s, int64_t image, int64_t head) {
  return array.data() + (image * s.heads + head) * (array.size() / (s.batch * s.heads));
}

// Writes the products, (queries, key_stride), of some queries with all keys in `blocks_of_tokens`.
template <typename T>
void multiply_keys(const Sizes& s, const T* queries, int64_t number, const T* key_blocks, T* products) {
  multiply(
      queries, s.head_dims, 1, key_blocks, kColumns, s.head_dims * kColumns, products, s.key_stride,
      round_up(number, kGroup), s.head_dims, round_up(s.tokens, kHalfColumns));
}

// Writes the sums, (queries, padded_dims), of tokens in `rows_of_tokens`, weighted by (queries, key_stride).
template <typename T>
void sum_tokens(const Sizes& s, const T* weights, int64_t number, const T* token_rows, T* sums) {
  multiply(
      weights, s.key_stride, 1, token_rows, s.padded_dims, kColumns, sums, s.padded_dims, round_up(number, kGroup),
      s.tokens, s.padded_dims);
}

// The memory of a thread for one query, flat, and for one block of queries.
template <typename T>
struct Workspace {
  explicit Workspace(const Sizes& s)
      : activation(s.hidden * s.stride),
        convolved(s.head_groups * kGroup * s.stride),
        query(kQueries * s.head_dims),
        sums(kQueries * s.padded_dims) {}

  Buffer<T> activation, convolved, query, sums;
};

template <typename T>
void forward(const PeripheralInputs& inputs, double eps, Tensor& output, Tensor& logsumexp) {
  const Sizes s(inputs);
  const Position<T> position(inputs, s, eps);
  const Buffer<T> keys = blocks_of_tokens<T>(inputs.key, s), values = rows_of_tokens<T>(inputs.value, s);
  const T* query_data = inputs.query.const_data_ptr<T>();
  T *output_data = output.mutable_data_ptr<T>(), *logsumexp_data = logsumexp.mutable_data_ptr<T>();
  parallel_for(0, divide_up(s.tokens, kQueries), 1, [&](int64_t begin, int64_t end) {
    Workspace<T> work(s);
    Buffer<T> log_phi(s.heads * kQueries * s.key_stride), logits(kQueries * s.key_stride), scale(kQueries);
    for (int64_t first = begin * kQueries; first < std::min(end * kQueries, s.tokens); first += kQueries) {
      const int64_t queries = std::min(kQueries, s.tokens - first);
      for (int64_t number = 0; number < queries; ++number) {
        position.convolve_window(first + number, work.activation.data(), work.convolved.data());
        for (int64_t head = 0; head < s.heads; ++head)
          position.compute_log_phi(
              head, work.convolved.data(), logits.data(), log_phi.data() + (head * kQueries + number) * s.key_stride);
      }
      for (int64_t image = 0; image < s.batch; ++image) {
        for (int64_t head = 0; head < s.heads; ++head) {
          const int64_t d = s.head_dims, token = s.token(image, head, first);
          scale_to(work.query.data(), query_data + token * d, queries * d, T(s.logit_scale));
          multiply_keys(s, work.query.data(), queries, head_of(keys, s, image, head), logits.data());
          const T* of_head = log_phi.data() + head * kQueries * s.key_stride;
          compute_softmax(s, of_head, logits.data(), scale.data(), logsumexp_data + token, queries);
          sum_tokens(s, logits.data(), queries, head_of(values, s, image, head), work.sums.data());
          for (int64_t number = 0; number < queries; ++number)
            scale_to(output_data + (token + number) * d, work.sums.data() + number * s.padded_dims, d, scale[number]);
        }
      }
    }
  });
}

// The backward pass, for one band of queries at a time.
template <typename T>
class Backward {
 public:
  Backward(const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp)
      : inputs_(inputs), s_(inputs), position_(inputs, s_, eps), grad_output_(grad_output), logsumexp_(logsumexp) {
    std::fill_n(inside_.begin(), s_.pitch, T(1));
  }

  PeripheralInputs run() {
    for (first_ = 0; first_ < s_.tokens; first_ += band_) {
      queries_ = std::min(band_, s_.tokens - first_);
      compute_position();
      for (int64_t image = 0; image < s_.batch; ++image) {
        compute_query_gradients(image);
        add_key_value_gradients(image);
      }
      compute_convolution_gradients();
      add_position_gradients();
    }
    store_tokens(grad_key_, grad_.key);
    store_tokens(grad_value_, grad_.value);
    store_position_gradients();
    return grad_;
  }

 private:
  // The index of a head and query in the arrays of the band.
  int64_t row(int64_t head, int64_t number) const { return (head * band_ + number) * s_.key_stride; }

  // The gradients of the convolution's output for a query and head, which lie between zeros.
  T* grad_convolved(int64_t number, int64_t head) {
    return grad_convolved_.data() + (number * s_.head_groups * kGroup + head) * s_.stride + s_.gradient_start;
  }

  // Computes log Phi_p of the band again.
  void compute_position() {
    parallel_for(0, queries_, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> work(s_);
      for (int64_t number = begin; number < end; ++number) {
        position_.convolve_window(first_ + number, work.activation.data(), work.convolved.data());
        for (int64_t head = 0; head < s_.heads; ++head) {
          const int64_t index = row(head, number);
          std::fill_n(grad_log_phi_.begin() + index, s_.key_stride, T(0));
          inverse_deviation_[head * band_ + number] = position_.compute_log_phi(
              head, work.convolved.data(), normalized_.data() + index, log_phi_.data() + index);
        }
      }
    });
  }

  // Computes the gradients of the band's queries and logits, and its weights.
  void compute_query_gradients(int64_t image) {
    const int64_t d = s_.head_dims, blocks = divide_up(queries_, kQueries);
    const T *query = DataOf{inputs_.query}, *grad_output = DataOf{grad_output_}, *logsumexp = DataOf{logsumexp_};
    T* grad_query = DataOf{grad_.query};
    parallel_for(0, s_.heads * blocks, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> work(s_);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / blocks, start = task % blocks * kQueries;
        const int64_t queries = std::min(kQueries, queries_ - start), index = row(head, start);
        const int64_t token = s_.token(image, head, first_ + start);
        scale_to(work.query.data(), query + token * d, queries * d, T(s_.logit_scale));
        multiply_keys(s_, work.query.data(), queries, head_of(key_blocks_, s_, image, head), weights_.data() + index);
        std::copy_n(grad_output + token * d, queries * d, work.query.data());
        multiply_keys(
            s_, work.query.data(), queries, head_of(value_blocks_, s_, image, head), grad_logits_.data() + index);
        compute_grad_softmax(
            s_, log_phi_.data() + index, logsumexp + token, weights_.data() + index, grad_logits_.data() + index,
            grad_log_phi_.data() + index, queries);
        sum_tokens(s_, grad_logits_.data() + index, queries, head_of(key_rows_, s_, image, head), work.sums.data());
        for (int64_t number = 0; number < queries; ++number)
          scale_to(
              grad_query + (token + number) * d, work.sums.data() + number * s_.padded_dims, d, T(s_.logit_scale));
      }
    });
  }

  void add_key_value_gradients(int64_t image) {
    const int64_t ranges = divide_up(s_.tokens, kKeys);
    parallel_for(0, s_.heads * ranges, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / ranges, start = task % ranges * kKeys;
        const int64_t rows = round_up(std::min(kKeys, s_.tokens - start), kGroup), index = row(head, 0) + start;
        const auto add = [&](const Buffer<T>& weights, const Buffer<T>& tokens, Buffer<T>& sums) {
          const T* first = head_of(tokens, s_, image, head) + first_ * s_.padded_dims;
          T* target = head_of(sums, s_, image, head) + start * s_.padded_dims;
          multiply(
              weights.data() + index, 1, s_.key_stride, first, s_.padded_dims, kColumns, target, s_.padded_dims, rows,
              queries_, s_.padded_dims, /*adds=*/true);
        };
        add(grad_logits_, query_rows_, grad_key_);
        add(weights_, grad_output_rows_, grad_value_);
      }
    });
  }

  // Computes the gradients of the second convolution's outputs from those of log Phi_p, and overwrites log Phi_p.
  void compute_convolution_gradients() {
    parallel_for(0, queries_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; ++number)
        for (int64_t head = 0; head < s_.heads; ++head) {
          const int64_t index = row(head, number), sum = head * s_.tokens + first_ + number;
          compute_grad_norm(
              s_, grad_log_phi_.data() + index, normalized_.data() + index, position_.norm_weight[head],
              position_.norm_bias[head], inverse_deviation_[head * band_ + number], log_phi_.data() + index,
              grad_convolved(number, head), &grad_norm_weight_[sum], &grad_norm_bias_[sum]);
        }
    });
  }

  // Adds to the gradients of plane and second convolution, and computes those of scale and shift. A task is a slice
  // of the band's queries and a group of hidden channels.
  void add_position_gradients() {
    const int64_t slice = divide_up(queries_, kSlices);
    const int64_t weights = s_.head_groups * kGroup * 3 * kGroup * 3;  // the weights of a task
    T *grad_scale = DataOf{grad_.scale}, *grad_shift = DataOf{grad_.shift};
    parallel_for(0, kSlices * s_.hidden_groups, 1, [&](int64_t begin, int64_t end) {
      Buffer<T> activation(kGroup * s_.stride), grad_activation(kGroup * s_.stride), sums(weights * kPositions);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t part = task / s_.hidden_groups, group = task % s_.hidden_groups;
        const int64_t start = group * kGroup, stop = std::min(start + kGroup, s_.hidden);
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t number = part * slice; number < std::min((part + 1) * slice, queries_); ++number) {
          const int64_t query = first_ + number;
          position_.activate(query, start, stop, activation.data());
          convolve(
              s_, grad_convolved(number, 0) - s_.margin, s_.heads,
              transposed_weight_.data() + group * s_.heads * kTaps * kGroup, grad_activation.data(), 1, s_.window);
          add_grad_weight(s_, grad_convolved(number, 0), activation.data(), sums.data());
          for (int64_t channel = start; channel < stop; ++channel) {
            const int64_t index = channel * s_.tokens + s_.window_of(query), flat = (channel - start) * s_.stride;
            add_grad_plane(
                s_, activation.data() + flat, grad_activation.data() + flat, position_.window(query, channel),
                inside_.data(), position_.scale[index],
                grad_plane_.data() + (part * s_.hidden + channel) * s_.plane_stride + s_.window_start(query),
                grad_scale + index, grad_shift + index);
          }
        }
        for (int64_t index = 0; index < weights; ++index)
          for (int64_t lane = 0; lane < kPositions; ++lane)
            grad_weight_[task * weights + index] += sums[index * kPositions + lane];
      }
    });
  }

  // The weights that convolve gradients back, as `convolve` reads them: inputs and outputs are exchanged, and
  // directions reversed.
  Buffer<T> transposed_weight() const {
    const T* weight = DataOf{inputs_.conv_weight};
    Buffer<T> reversed(s_.hidden * s_.heads * kTaps);
    for (int64_t head = 0; head < s_.heads; ++head)
      for (int64_t channel = 0; channel < s_.hidden; ++channel, weight += kTaps)
        std::reverse_copy(weight, weight + kTaps, reversed.data() + (channel * s_.heads + head) * kTaps);
    return blocks_of<kGroup>(std::as_const(reversed).data(), 1, s_.hidden, s_.heads * kTaps);
  }

  // Copies the sums for tokens, which are padded, to their gradients.
  void store_tokens(const Buffer<T>& sums, const Tensor& gradients) const {
    T* const target = DataOf{gradients};
    const int64_t size = s_.tokens * s_.head_dims;
    parallel_for(0, s_.batch * s_.heads, grain_of(size), [&](int64_t begin, int64_t end) {
      for (int64_t batch_head = begin; batch_head < end; ++batch_head)
        for (int64_t token = 0; token < s_.tokens; ++token) {
          const T* sum = head_of(sums, s_, 0, batch_head) + token * s_.padded_dims;
          std::copy_n(sum, s_.head_dims, target + batch_head * size + token * s_.head_dims);
        }
    });
  }

  // Adds up the gradients of plane, convolution and norm. Those of scale and shift are finished, and the output does
  // not depend on conv_bias.
  void store_position_gradients() const {
    T *plane = DataOf{grad_.plane}, *weight = DataOf{grad_.conv_weight};
    T *norm_weight = DataOf{grad_.norm_weight}, *norm_bias = DataOf{grad_.norm_bias};
    const int64_t size = s_.plane_stride - kPositions;
    for (int64_t row = 0; row < kSlices * s_.hidden; ++row)
      add_scaled(plane + row % s_.hidden * size, T(1), grad_plane_.data() + row * s_.plane_stride, size);
    for (int64_t head = 0; head < s_.heads; ++head) {
      for (int64_t channel = 0; channel < s_.hidden; ++channel)
        for (int64_t tap = 0; tap < kTaps; ++tap) {
          double sum = 0;
          for (int64_t slice = 0; slice < kSlices; ++slice) {
            const int64_t group = (slice * s_.hidden_groups + channel / kGroup) * s_.head_groups + head / kGroup;
            const int64_t row = (group * kGroup + channel % kGroup) * 3 + tap / 3;
            sum += grad_weight_[(row * kGroup + head % kGroup) * 3 + tap % 3];
          }
          *weight++ = static_cast<T>(sum);
        }
      const auto sum_of = [&](const Buffer<T>& parts) {
        const T* first = parts.data() + head * s_.tokens;
        return static_cast<T>(std::accumulate(first, first + s_.tokens, 0.0));
      };
      norm_weight[head] = sum_of(grad_norm_weight_), norm_bias[head] = sum_of(grad_norm_bias_);
    }
  }

  const PeripheralInputs& inputs_;
  const Sizes s_;
  const Position<T> position_;
  const Tensor &grad_output_, &logsumexp_;
  // The queries of a band, whole blocks, and those of the present one.
  const int64_t band_ =
      kQueries *
      std::clamp(kBandPairs / (s_.heads * s_.tokens * kQueries), int64_t(1), divide_up(s_.tokens, kQueries));
  int64_t first_ = 0, queries_ = 0;
  const Buffer<T> key_blocks_ = blocks_of_tokens<T>(inputs_.key, s_);
  const Buffer<T> value_blocks_ = blocks_of_tokens<T>(inputs_.value, s_);
  const Buffer<T> key_rows_ = rows_of_tokens<T>(inputs_.key, s_);
  const Buffer<T> grad_output_rows_ = rows_of_tokens<T>(grad_output_, s_);
  const Buffer<T> query_rows_ = rows_of_tokens<T>(inputs_.query, s_, s_.logit_scale);
  const Buffer<T> transposed_weight_ = transposed_weight();
  Buffer<T> inside_ = Buffer<T>(round_up(s_.pitch, kPositions));
  // These are of one band: (heads, queries, key_stride), (heads, queries), (queries, head_groups * kGroup, stride).
  Buffer<T> normalized_ = Buffer<T>(s_.heads * band_ * s_.key_stride), log_phi_ = normalized_;
  Buffer<T> grad_log_phi_ = normalized_, weights_ = normalized_, grad_logits_ = normalized_;
  Buffer<T> inverse_deviation_ = Buffer<T>(s_.heads * band_);
  Buffer<T> grad_convolved_ = Buffer<T>(band_ * s_.head_groups * kGroup * s_.stride);
  PeripheralInputs grad_ = map(inputs_, [](const Tensor& input) { return zeroed(input.sizes(), input.options()); });
  Buffer<T> grad_plane_ = Buffer<T>(kSlices * s_.hidden * s_.plane_stride);
  // (kSlices, hidden_groups, head_groups, kGroup of the hidden channels, 3, kGroup of the heads, 3)
  Buffer<double> grad_weight_ = Buffer<double>(kSlices * s_.hidden_groups * s_.head_groups * kGroup * kGroup * kTaps);
  Buffer<T> grad_norm_weight_ = Buffer<T>(s_.heads * s_.tokens), grad_norm_bias_ = grad_norm_weight_;
  Buffer<T> grad_key_ = Buffer<T>(s_.batch * s_.heads * round_up(s_.tokens, kGroup) * s_.padded_dims);
  Buffer<T> grad_value_ = grad_key_;
};

}  // namespace

PeripheralForward forward(const PeripheralInputs& inputs, double eps) {
  Tensor output = empty_like(inputs.query);
  Tensor logsumexp = empty(inputs.query.sizes().slice(0, 3), inputs.query.options());
  dispatch<float, double>(
      inputs.query.scalar_type(), [&](auto zero) { forward<decltype(zero)>(inputs, eps, output, logsumexp); });
  return {output, logsumexp};
}

PeripheralInputs backward(
    const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp) {
  PeripheralInputs gradients;
  dispatch<float, double>(inputs.query.scalar_type(), [&](auto zero) {
    gradients = Backward<decltype(zero)>(grad_output, inputs, eps, logsumexp).run();
  });
  return gradients;
}

}  // namespace bioattn_mm::BIOATTN_ISA::peripheral_attention
