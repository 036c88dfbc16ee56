// Peripheral attention on the CPU, fused: log Phi_p and attention weights exist for one block of queries at a time.
//
// An array with an element for each key of one query is flat: it has rows of W + 2 positions (`pitch`), the width of
// a query's window of the plane. The 9 inputs of a 3 x 3 convolution are then at fixed distances from its output, so
// that loops run over whole vectors whatever the width; the last two positions of each row are computed and not used.
//
// In the backward pass every task owns all gradients that it adds to (of its queries, keys or hidden channels): sums
// have the same order for any number of threads.
#pragma once

#include "kernels.h"

namespace bioattn_mm::BIOATTN_ISA::peripheral_attention {
namespace {

// Convolutions and matrix products keep kGroup x kColumns sums in half of the registers: for output channels and
// positions, or for rows and columns of a matrix.
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
        pitch(width + 2),
        plane_pitch(2 * width + 1),
        plane_stride((2 * height + 1) * plane_pitch + kPositions),
        head_groups(divide_up(heads, kGroup)),
        hidden_groups(divide_up(hidden, kGroup)),
        convolved(height * pitch),
        window((height + 2) * pitch),
        margin(2 * pitch + 2),
        gradient_start(round_up(margin, kPositions)),
        stride(round_up(window, kColumns) + gradient_start + kPositions),
        padded_dims(round_up(head_dims, kHalfColumns)),
        logit_scale(1 / std::sqrt(static_cast<double>(head_dims))),
        key_blocks(divide_up(tokens, kColumns)),
        key_stride(key_blocks * kColumns + kPositions) {}

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
  int64_t pitch, plane_pitch;
  int64_t plane_stride;  // elements of a channel of the plane, padded so that whole vectors can be read at its end
  int64_t head_groups, hidden_groups;
  int64_t convolved, window;  // positions after and before the second convolution
  int64_t margin;             // farthest distance from an output of a convolution to an input
  int64_t gradient_start;     // the first position of a gradient that has a margin of zeros before it; whole vectors
  int64_t stride;             // elements of a channel in the flat arrays, margin included
  int64_t padded_dims;        // columns of matrices of tokens
  double logit_scale;         // the factor of the products of queries and keys
  // Rows with an element for each key have `key_stride` elements: whole blocks of keys, and some more, because rows
  // at a distance of a power of two would fall into the same sets of the cache.
  int64_t key_blocks, key_stride;
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

// relu(scale * plane + shift) of one channel of a query's window.
template <typename T>
struct Activation {
  const T* plane;  // at the start of the window
  T scale, shift;
  T* activation;  // flat
  int64_t rows, pitch, plane_pitch;
};

template <typename T>
BIOATTN_KERNEL void compute_activation(const Activation<T> task) {
  for (int64_t i = 0; i < task.rows; ++i) {
    const T* source = task.plane + i * task.plane_pitch;
    T* target = task.activation + i * task.pitch;
    // Elements written beyond the row are overwritten by the next row; those beyond the last row are not used.
    for (int64_t j = 0; j < task.pitch; j += kPositions) {
#pragma omp simd
      for (int64_t lane = 0; lane < kPositions; ++lane) {
        const T x = task.scale * source[j + lane] + task.shift;
        target[j + lane] = x < 0 ? T(0) : x;  // NaN stays NaN
      }
    }
  }
}

// A 3 x 3 convolution of flat arrays; output k has the inputs k to k + margin.
template <typename T>
struct Convolution {
  const T* input;   // (inputs, stride)
  const T* weight;  // (groups, inputs, kTaps, kGroup)
  T* output;        // (groups * kGroup, stride)
  int64_t inputs, groups, stride, pitch, length;
};

template <typename T>
BIOATTN_KERNEL void convolve(const Convolution<T> task) {
  for (int64_t first = 0; first < task.length; first += kColumns) {
    const T* weight = task.weight;
    for (int64_t group = 0; group < task.groups; ++group) {
      T sum[kGroup][kColumns] = {};
      for (int64_t input = 0; input < task.inputs; ++input) {
        for (int64_t dy = 0; dy < 3; ++dy) {
          const T* source = task.input + input * task.stride + first + dy * task.pitch;
          for (int64_t dx = 0; dx < 3; ++dx, ++source, weight += kGroup) {
            for (int64_t c = 0; c < kGroup; ++c) {
#pragma omp simd
              for (int64_t k = 0; k < kColumns; ++k) sum[c][k] += weight[c] * source[k];
            }
          }
        }
      }
      for (int64_t c = 0; c < kGroup; ++c) {
        T* target = task.output + (group * kGroup + c) * task.stride + first;
#pragma omp simd
        for (int64_t k = 0; k < kColumns; ++k) target[k] = sum[c][k];
      }
    }
  }
}

// c = a b, or c += a b, for matrices a (rows, steps), b (steps, columns) and c (rows, columns). Rows are a multiple
// of kGroup, columns of kHalfColumns.
template <typename T>
struct Product {
  const T* a;
  int64_t row_stride, step_stride;
  const T* b;
  int64_t b_stride, block_stride;  // distance of steps, and of blocks of kColumns columns
  T* c;
  int64_t c_stride;
  int64_t rows, steps, columns;
  bool add;
};

template <int64_t columns, typename T>
BIOATTN_INLINE void multiply_block(
    const T* a, int64_t row_stride, int64_t step_stride, const T* b, int64_t b_stride, T* c, int64_t c_stride,
    int64_t steps, bool add) {
  T sum[kGroup][columns];
  for (int64_t row = 0; row < kGroup; ++row) {
#pragma omp simd
    for (int64_t k = 0; k < columns; ++k) sum[row][k] = add ? c[row * c_stride + k] : T(0);
  }
  for (int64_t step = 0; step < steps; ++step, a += step_stride, b += b_stride) {
    for (int64_t row = 0; row < kGroup; ++row) {
      const T factor = a[row * row_stride];
#pragma omp simd
      for (int64_t k = 0; k < columns; ++k) sum[row][k] += factor * b[k];
    }
  }
  for (int64_t row = 0; row < kGroup; ++row) {
#pragma omp simd
    for (int64_t k = 0; k < columns; ++k) c[row * c_stride + k] = sum[row][k];
  }
}

template <typename T>
BIOATTN_KERNEL void multiply(const Product<T> task) {
  for (int64_t column = 0; column < task.columns; column += kColumns) {
    for (int64_t first = 0; first < task.steps; first += kSteps) {
      const T* b = task.b + column / kColumns * task.block_stride + first * task.b_stride;
      const int64_t steps = std::min(kSteps, task.steps - first);
      const bool add = task.add || first > 0;
      for (int64_t row = 0; row < task.rows; row += kGroup) {
        const T* a = task.a + row * task.row_stride + first * task.step_stride;
        T* c = task.c + row * task.c_stride + column;
        if (task.columns - column >= kColumns)
          multiply_block<kColumns>(
              a, task.row_stride, task.step_stride, b, task.b_stride, c, task.c_stride, steps, add);
        else
          multiply_block<kHalfColumns>(
              a, task.row_stride, task.step_stride, b, task.b_stride, c, task.c_stride, steps, add);
      }
    }
  }
}

// The second instance norm, and log Phi_p, of one query and head.
template <typename T>
struct Norm {
  const T* convolved;  // flat
  T weight, bias, eps;
  T* normalized;         // (H * W), before weight and bias
  T* log_phi;            // (H * W)
  T* inverse_deviation;  // 1 / standard deviation
  int64_t height, width, pitch;
};

template <typename T>
BIOATTN_KERNEL void compute_norm(const Norm<T> task) {
  const int64_t keys = task.height * task.width;
  T* x = task.normalized;
  for (int64_t i = 0; i < task.height; ++i)
    std::memcpy(x + i * task.width, task.convolved + i * task.pitch, task.width * sizeof(T));
  T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < keys; ++k) sum += x[k];
  const T mean = sum / keys;
#pragma omp simd reduction(+ : squares)
  for (int64_t k = 0; k < keys; ++k) squares += (x[k] - mean) * (x[k] - mean);
  const T scale = 1 / std::sqrt(squares / keys + task.eps);
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) {
    x[k] = (x[k] - mean) * scale;
    task.log_phi[k] = log_sigmoid(x[k] * task.weight + task.bias);
  }
  *task.inverse_deviation = scale;
}

// The gradient of the output of the second convolution for one query and head.
template <typename T>
struct GradNorm {
  const T *grad_log_phi, *normalized;  // (H * W)
  T weight, bias, inverse_deviation;
  T* grad_logit;               // (H * W): gradient of the logarithm's sigmoid's argument
  T* grad_convolved;           // flat
  T *grad_weight, *grad_bias;  // this query's part of them
  int64_t height, width, pitch;
};

template <typename T>
BIOATTN_KERNEL void compute_grad_norm(const GradNorm<T> task) {
  const int64_t keys = task.height * task.width;
  const T* x = task.normalized;
  T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t k = 0; k < keys; ++k) {
    const T grad = task.grad_log_phi[k] * grad_log_sigmoid(x[k] * task.weight + task.bias);
    task.grad_logit[k] = grad;
    sum += grad;
    product += grad * x[k];
  }
  *task.grad_bias = sum;
  *task.grad_weight = product;
  const T factor = task.weight * task.inverse_deviation, mean = sum / keys, slope = product / keys;
  for (int64_t i = 0; i < task.height; ++i) {
    const T *grad = task.grad_logit + i * task.width, *row = x + i * task.width;
    T* target = task.grad_convolved + i * task.pitch;
#pragma omp simd
    for (int64_t j = 0; j < task.width; ++j) target[j] = factor * (grad[j] - mean - slope * row[j]);
  }
}

// Turns the logits of some queries and all keys into exponentials; `scale` is one over their sum.
template <typename T>
struct Softmax {
  const T* log_phi;  // (queries, keys)
  T* logits;         // (queries, keys), without log_phi
  T *scale, *logsumexp;
  int64_t queries, keys, stride;
};

template <typename T>
BIOATTN_KERNEL void compute_softmax(const Softmax<T> task) {
  for (int64_t query = 0; query < task.queries; ++query) {
    const T* log_phi = task.log_phi + query * task.stride;
    T* logits = task.logits + query * task.stride;
    T highest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : highest)
    for (int64_t k = 0; k < task.keys; ++k) {
      logits[k] += log_phi[k];
      highest = logits[k] > highest ? logits[k] : highest;
    }
    const T sum = exponentiate(logits, task.keys, highest);
    task.scale[query] = 1 / sum;
    task.logsumexp[query] = highest + std::log(sum);
  }
}

// Turns logits into weights, and gradients of the weights into those of the logits.
template <typename T>
struct GradSoftmax {
  const T *log_phi, *logsumexp;     // (queries, keys), (queries)
  T *logits, *grad, *grad_log_phi;  // (queries, keys)
  int64_t queries, keys, stride;
};

template <typename T>
BIOATTN_KERNEL void compute_grad_softmax(const GradSoftmax<T> task) {
  for (int64_t query = 0; query < task.queries; ++query) {
    const T* log_phi = task.log_phi + query * task.stride;
    T* weights = task.logits + query * task.stride;
    T* grad = task.grad + query * task.stride;
    T* grad_log_phi = task.grad_log_phi + query * task.stride;
    const T shift = task.logsumexp[query];
    T mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t k = 0; k < task.keys; ++k) {
      weights[k] = exponential(weights[k] + log_phi[k] - shift);
      mean += weights[k] * grad[k];
    }
#pragma omp simd
    for (int64_t k = 0; k < task.keys; ++k) {
      grad[k] = weights[k] * (grad[k] - mean);
      grad_log_phi[k] += grad[k];
    }
  }
}

// The gradients of the second convolution's weight for kGroup hidden channels: products of the gradients of its
// outputs with its inputs at every distance, summed over the positions into vectors.
template <typename T>
struct GradWeight {
  const T* grad_convolved;  // (head_groups * kGroup, stride)
  const T* activation;      // (kGroup, stride)
  T* sums;                  // (head_groups, kGroup hidden channels, 3, kGroup heads, 3, kPositions)
  int64_t head_groups, stride, pitch, length;
};

template <typename T>
BIOATTN_KERNEL void add_grad_weight(const GradWeight<T> task) {
  for (int64_t first = 0; first < task.length; first += kChunk) {
    const int64_t end = std::min(first + kChunk, task.length);
    T* sums = task.sums;
    for (int64_t group = 0; group < task.head_groups; ++group) {
      const T* grad = task.grad_convolved + group * kGroup * task.stride;
      for (int64_t row = 0; row < 3 * kGroup; ++row) {
        const T* input = task.activation + row / 3 * task.stride + row % 3 * task.pitch;
        T sum[kGroup * 3 * kPositions];
        std::memcpy(sum, sums, sizeof sum);
        for (int64_t k = first; k < end; k += kPositions) {
#pragma omp simd
          for (int64_t lane = 0; lane < kPositions; ++lane) {
            for (int64_t head = 0; head < kGroup; ++head) {
              const T factor = grad[head * task.stride + k + lane];
              for (int64_t dx = 0; dx < 3; ++dx)
                sum[(head * 3 + dx) * kPositions + lane] += factor * input[k + dx + lane];
            }
          }
        }
        std::memcpy(sums, sum, sizeof sum);
        sums += kGroup * 3 * kPositions;
      }
    }
  }
}

// Computes the gradients of the plane, of scale and of shift from that of one channel's activations.
template <typename T>
struct GradActivation {
  const T *activation, *grad_activation;  // flat
  const T* plane;                         // at the start of the window
  const T* inside;                        // 1 for the positions of a row, 0 for those up to a whole vector
  T scale;
  T* grad_plane;  // at the start of the window
  T *grad_scale, *grad_shift;
  int64_t rows, pitch, plane_pitch;
};

template <typename T>
BIOATTN_KERNEL void add_grad_plane(const GradActivation<T> task) {
  T scale_sum[kPositions] = {}, shift_sum[kPositions] = {};
  for (int64_t i = 0; i < task.rows; ++i) {
    const T *activation = task.activation + i * task.pitch, *grad = task.grad_activation + i * task.pitch;
    const T* plane = task.plane + i * task.plane_pitch;
    T* grad_plane = task.grad_plane + i * task.plane_pitch;
    for (int64_t j = 0; j < task.pitch; j += kPositions) {
#pragma omp simd
      for (int64_t lane = 0; lane < kPositions; ++lane) {
        T masked = grad[j + lane] * task.inside[j + lane];
        masked = activation[j + lane] > 0 ? masked : T(0);
        shift_sum[lane] += masked;
        scale_sum[lane] += masked * plane[j + lane];
        grad_plane[j + lane] += masked * task.scale;
      }
    }
  }
  T scale = 0, shift = 0;
  for (int64_t lane = 0; lane < kPositions; ++lane) {
    scale += scale_sum[lane];
    shift += shift_sum[lane];
  }
  *task.grad_scale = scale;
  *task.grad_shift = shift;
}

// A workspace of zeros. It is a tensor because these begin at a cache line.
template <typename T>
struct Buffer {
  explicit Buffer(int64_t size)
      : tensor(zeros({size}, on_cpu(scalar_type_of<T>))), data(tensor.mutable_data_ptr<T>()) {}

  Tensor tensor;
  T* data;
};

// The weights of a convolution, (outputs, inputs, kTaps), as `Convolution` reads them; those of missing channels are
// zero.
Tensor grouped_weights(const Tensor& weight) {
  const int64_t outputs = weight.size(0), groups = divide_up(outputs, kGroup);
  return pad(weight.contiguous(), {0, 0, 0, 0, 0, groups * kGroup - outputs})
      .view({groups, kGroup, weight.size(1), kTaps})
      .permute({0, 2, 3, 1})
      .contiguous();
}

// The inputs that log Phi_p is computed from, and its steps.
template <typename T>
struct Position {
  Position(const PeripheralInputs& inputs, const Sizes& sizes, double eps)
      : s(sizes),
        eps(eps),
        padded_plane(pad(inputs.plane.flatten(1), {0, kPositions}).contiguous()),
        weight(grouped_weights(inputs.conv_weight.flatten(2))),
        plane(padded_plane.const_data_ptr<T>()),
        scale(inputs.scale.const_data_ptr<T>()),
        shift(inputs.shift.const_data_ptr<T>()),
        norm_weight(inputs.norm_weight.const_data_ptr<T>()),
        norm_bias(inputs.norm_bias.const_data_ptr<T>()) {}

  // Computes the hidden activations of a query, (stop - start, stride).
  void activate(int64_t query, int64_t start, int64_t stop, T* activation) const {
    for (int64_t channel = start; channel < stop; ++channel, activation += s.stride) {
      const int64_t index = channel * s.tokens + s.window_of(query);
      compute_activation(
          Activation<T>{
              plane + channel * s.plane_stride + s.window_start(query), scale[index], shift[index], activation,
              s.height + 2, s.pitch, s.plane_pitch});
    }
  }

  // Computes the hidden activations of a query and their second convolution, (head_groups * kGroup, stride). The
  // convolution's bias is left out, because the norm subtracts the mean.
  void convolve_window(int64_t query, T* activation, T* convolved) const {
    activate(query, 0, s.hidden, activation);
    convolve(
        Convolution<T>{
            activation, weight.const_data_ptr<T>(), convolved, s.hidden, s.head_groups, s.stride, s.pitch,
            s.convolved});
  }

  // Computes the second norm and log Phi_p for a head, from the result of `convolve_window`.
  void compute_log_phi(int64_t head, const T* convolved, T* normalized, T* log_phi, T* inverse_deviation) const {
    compute_norm(
        Norm<T>{
            convolved + head * s.stride, norm_weight[head], norm_bias[head], eps, normalized, log_phi,
            inverse_deviation, s.height, s.width, s.pitch});
  }

  const Sizes& s;
  const T eps;
  const Tensor padded_plane;  // (channels, plane_stride)
  const Tensor weight;
  const T *plane, *scale, *shift, *norm_weight, *norm_bias;
};

// Tokens (B, heads, H * W, d) as the second factor of a product over their channels: (B, heads, key_blocks, d,
// kColumns).
Tensor blocks_of(const Tensor& tokens, const Sizes& s) {
  return pad(tokens, {0, 0, 0, s.key_blocks * kColumns - s.tokens})
      .view({s.batch, s.heads, s.key_blocks, kColumns, s.head_dims})
      .transpose(3, 4)
      .contiguous();
}

// Tokens as the second factor of a product over themselves: (B, heads, H * W, padded_dims).
Tensor rows_of(const Tensor& tokens, const Sizes& s) { return pad(tokens, {0, s.padded_dims - s.head_dims}); }

// The first element of a tensor (B, heads, ...) that belongs to an image and head.
template <typename T>
const T* head_of(const Tensor& tensor, int64_t image, int64_t head) {
  return tensor.const_data_ptr<T>() + image * tensor.stride(0) + head * tensor.stride(1);
}

// Writes the products, (queries, key_stride), of some queries, or of other tokens instead, with all keys in
// `blocks_of`.
template <typename T>
void multiply_keys(const Sizes& s, const T* queries, int64_t number, const T* key_blocks, T* products) {
  multiply(
      Product<T>{
          queries, s.head_dims, 1, key_blocks, kColumns, s.head_dims * kColumns, products, s.key_stride,
          round_up(number, kGroup), s.head_dims, round_up(s.tokens, kHalfColumns), false});
}

// Writes the sums, (queries, padded_dims), of tokens in `rows_of`, weighted by (queries, key_stride).
template <typename T>
void sum_tokens(const Sizes& s, const T* weights, int64_t number, const T* token_rows, T* sums) {
  multiply(
      Product<T>{
          weights, s.key_stride, 1, token_rows, s.padded_dims, kColumns, sums, s.padded_dims,
          round_up(number, kGroup), s.tokens, s.padded_dims, false});
}

// target = factor * source
template <typename T>
void scale_to(T* target, const T* source, int64_t size, T factor) {
  for (int64_t k = 0; k < size; ++k) target[k] = factor * source[k];
}

// The memory of a thread for one query and for one block of queries.
template <typename T>
struct Workspace {
  explicit Workspace(const Sizes& s)
      : activation(s.hidden * s.stride),
        convolved(s.head_groups * kGroup * s.stride),
        query(kQueries * s.head_dims),
        sums(kQueries * s.padded_dims) {}

  Buffer<T> activation, convolved;  // flat
  Buffer<T> query, sums;
};

template <typename T>
void forward(const PeripheralInputs& inputs, double eps, Tensor& output, Tensor& logsumexp) {
  const Sizes s(inputs);
  const Position<T> position(inputs, s, eps);
  const Tensor keys = blocks_of(inputs.key, s), values = rows_of(inputs.value, s);
  const T* query_data = inputs.query.const_data_ptr<T>();
  T *output_data = output.mutable_data_ptr<T>(), *logsumexp_data = logsumexp.mutable_data_ptr<T>();
  parallel_for(0, divide_up(s.tokens, kQueries), 1, [&](int64_t begin, int64_t end) {
    Workspace<T> work(s);
    Buffer<T> log_phi(s.heads * kQueries * s.key_stride), logits(kQueries * s.key_stride), scale(kQueries);
    for (int64_t first = begin * kQueries; first < std::min(end * kQueries, s.tokens); first += kQueries) {
      const int64_t queries = std::min(kQueries, s.tokens - first);
      for (int64_t number = 0; number < queries; ++number) {
        position.convolve_window(first + number, work.activation.data, work.convolved.data);
        for (int64_t head = 0; head < s.heads; ++head) {
          T unused;
          position.compute_log_phi(
              head, work.convolved.data, logits.data, log_phi.data + (head * kQueries + number) * s.key_stride,
              &unused);
        }
      }
      for (int64_t image = 0; image < s.batch; ++image) {
        for (int64_t head = 0; head < s.heads; ++head) {
          const int64_t d = s.head_dims, token = s.token(image, head, first);
          scale_to(work.query.data, query_data + token * d, queries * d, T(s.logit_scale));
          multiply_keys(s, work.query.data, queries, head_of<T>(keys, image, head), logits.data);
          compute_softmax(
              Softmax<T>{
                  log_phi.data + head * kQueries * s.key_stride, logits.data, scale.data, logsumexp_data + token,
                  queries, s.tokens, s.key_stride});
          sum_tokens(s, logits.data, queries, head_of<T>(values, image, head), work.sums.data);
          for (int64_t number = 0; number < queries; ++number)
            scale_to(
                output_data + (token + number) * d, work.sums.data + number * s.padded_dims, d, scale.data[number]);
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
      : s_(inputs),
        position_(inputs, s_, eps),
        band_(
            kQueries *
            std::clamp(kBandPairs / (s_.heads * s_.tokens * kQueries), int64_t(1), divide_up(s_.tokens, kQueries))),
        query_(inputs.query.const_data_ptr<T>()),
        grad_output_(grad_output.const_data_ptr<T>()),
        logsumexp_(logsumexp.const_data_ptr<T>()),
        key_blocks_(blocks_of(inputs.key, s_)),
        value_blocks_(blocks_of(inputs.value, s_)),
        key_rows_(rows_of(inputs.key, s_)),
        query_rows_(rows_of(multiply_by(inputs.query, s_.logit_scale), s_)),
        grad_output_rows_(rows_of(grad_output, s_)),
        // It convolves the gradients of the outputs to those of the inputs: inputs and outputs are exchanged, and
        // directions are reversed.
        transposed_weight_(grouped_weights(inputs.conv_weight.flatten(2).flip({2}).transpose(0, 1))),
        inside_(round_up(s_.pitch, kPositions)),
        normalized_(s_.heads * band_ * s_.key_stride),
        log_phi_(s_.heads * band_ * s_.key_stride),
        grad_log_phi_(s_.heads * band_ * s_.key_stride),
        weights_(s_.heads * band_ * s_.key_stride),
        grad_logits_(s_.heads * band_ * s_.key_stride),
        inverse_deviation_(s_.heads * band_),
        grad_convolved_(band_ * s_.head_groups * kGroup * s_.stride),
        grad_plane_(zeros({kSlices, s_.hidden, s_.plane_stride}, inputs.plane.options())),
        grad_weight_(zeros(
            {kSlices, s_.hidden_groups, s_.head_groups, kGroup, 3, kGroup, 3},
            inputs.plane.options().dtype(kDouble))),
        grad_norm_weight_(empty({s_.heads, s_.tokens}, inputs.plane.options())),
        grad_norm_bias_(empty_like(grad_norm_weight_)),
        grad_key_(zeros({s_.batch, s_.heads, round_up(s_.tokens, kGroup), s_.padded_dims}, inputs.key.options())),
        grad_value_(zeros_like(grad_key_)) {
    std::fill_n(inside_.data, s_.pitch, T(1));
    grad_ = inputs.map(zeros_like);
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
    grad_.key = grad_key_.narrow(2, 0, s_.tokens).narrow(3, 0, s_.head_dims).contiguous();
    grad_.value = grad_value_.narrow(2, 0, s_.tokens).narrow(3, 0, s_.head_dims).contiguous();
    grad_.plane =
        grad_plane_.sum({0}).narrow(1, 0, s_.plane_stride - kPositions).reshape(grad_.plane.sizes()).contiguous();
    const Tensor weight = grad_weight_.sum({0})
                              .permute({1, 4, 0, 2, 3, 5})  // heads, hidden channels, rows, columns
                              .reshape({s_.head_groups * kGroup, s_.hidden_groups * kGroup, 3, 3});
    grad_.conv_weight =
        weight.narrow(0, 0, s_.heads).narrow(1, 0, s_.hidden).to(grad_.plane.scalar_type()).contiguous();
    grad_.norm_weight = grad_norm_weight_.sum({1});
    grad_.norm_bias = grad_norm_bias_.sum({1});
    return grad_;  // the output does not depend on conv_bias, whose gradient stays zero
  }

 private:
  // The index of a head and query in the arrays of the band.
  int64_t row(int64_t head, int64_t number) const { return (head * band_ + number) * s_.key_stride; }

  T* grad_convolved(int64_t number, int64_t head) const {
    return grad_convolved_.data + (number * s_.head_groups * kGroup + head) * s_.stride;
  }

  // Computes log Phi_p of the band again.
  void compute_position() {
    grad_log_phi_.tensor.zero_();
    parallel_for(0, queries_, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> work(s_);
      for (int64_t number = begin; number < end; ++number) {
        position_.convolve_window(first_ + number, work.activation.data, work.convolved.data);
        for (int64_t head = 0; head < s_.heads; ++head)
          position_.compute_log_phi(
              head, work.convolved.data, normalized_.data + row(head, number), log_phi_.data + row(head, number),
              inverse_deviation_.data + head * band_ + number);
      }
    });
  }

  // Computes the gradients of the band's queries and logits, and its weights.
  void compute_query_gradients(int64_t image) {
    const int64_t d = s_.head_dims, blocks = divide_up(queries_, kQueries);
    T* grad_query = grad_.query.template mutable_data_ptr<T>();
    parallel_for(0, s_.heads * blocks, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> work(s_);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / blocks, start = task % blocks * kQueries;
        const int64_t queries = std::min(kQueries, queries_ - start), index = row(head, start);
        const int64_t token = s_.token(image, head, first_ + start);
        scale_to(work.query.data, query_ + token * d, queries * d, T(s_.logit_scale));
        multiply_keys(s_, work.query.data, queries, head_of<T>(key_blocks_, image, head), weights_.data + index);
        std::copy_n(grad_output_ + token * d, queries * d, work.query.data);
        multiply_keys(
            s_, work.query.data, queries, head_of<T>(value_blocks_, image, head), grad_logits_.data + index);
        compute_grad_softmax(
            GradSoftmax<T>{
                log_phi_.data + index, logsumexp_ + token, weights_.data + index, grad_logits_.data + index,
                grad_log_phi_.data + index, queries, s_.tokens, s_.key_stride});
        sum_tokens(s_, grad_logits_.data + index, queries, head_of<T>(key_rows_, image, head), work.sums.data);
        for (int64_t number = 0; number < queries; ++number)
          scale_to(grad_query + (token + number) * d, work.sums.data + number * s_.padded_dims, d, T(s_.logit_scale));
      }
    });
  }

  // Adds the band's part to the gradients of keys and values.
  void add_key_value_gradients(int64_t image) {
    const int64_t ranges = divide_up(s_.tokens, kKeys);
    T *grad_key = grad_key_.mutable_data_ptr<T>(), *grad_value = grad_value_.mutable_data_ptr<T>();
    parallel_for(0, s_.heads * ranges, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / ranges, start = task % ranges * kKeys;
        const int64_t rows = round_up(std::min(kKeys, s_.tokens - start), kGroup), index = row(head, 0) + start;
        const int64_t target = image * grad_key_.stride(0) + head * grad_key_.stride(1) + start * s_.padded_dims;
        const auto add = [&](const T* weights, const Tensor& tokens, T* sums) {
          const T* first = head_of<T>(tokens, image, head) + first_ * s_.padded_dims;
          multiply(
              Product<T>{
                  weights + index, 1, s_.key_stride, first, s_.padded_dims, kColumns, sums + target, s_.padded_dims,
                  rows, queries_, s_.padded_dims, true});
        };
        add(grad_logits_.data, query_rows_, grad_key);
        add(weights_.data, grad_output_rows_, grad_value);
      }
    });
  }

  // Computes the gradients of the second convolution's outputs from those of log Phi_p, and overwrites log Phi_p.
  void compute_convolution_gradients() {
    T* grad_weight = grad_norm_weight_.mutable_data_ptr<T>();
    T* grad_bias = grad_norm_bias_.mutable_data_ptr<T>();
    parallel_for(0, queries_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; ++number)
        for (int64_t head = 0; head < s_.heads; ++head) {
          const int64_t index = row(head, number), sum = head * s_.tokens + first_ + number;
          compute_grad_norm(
              GradNorm<T>{
                  grad_log_phi_.data + index, normalized_.data + index, position_.norm_weight[head],
                  position_.norm_bias[head], inverse_deviation_.data[head * band_ + number], log_phi_.data + index,
                  grad_convolved(number, head) + s_.gradient_start, grad_weight + sum, grad_bias + sum, s_.height,
                  s_.width, s_.pitch});
        }
    });
  }

  // Adds the band's part to the gradients of the plane and of the second convolution's weight, and computes the
  // gradients of scale and shift. A task is a slice of the band's queries and a group of hidden channels.
  void add_position_gradients() {
    const int64_t slice = divide_up(queries_, kSlices);
    const int64_t weights = s_.head_groups * kGroup * 3 * kGroup * 3;  // the weights of a task
    T* grad_plane = grad_plane_.mutable_data_ptr<T>();
    T* grad_scale = grad_.scale.template mutable_data_ptr<T>();
    T* grad_shift = grad_.shift.template mutable_data_ptr<T>();
    double* grad_weight = grad_weight_.mutable_data_ptr<double>();
    parallel_for(0, kSlices * s_.hidden_groups, 1, [&](int64_t begin, int64_t end) {
      Buffer<T> activation(kGroup * s_.stride), grad_activation(kGroup * s_.stride), sums(weights * kPositions);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t part = task / s_.hidden_groups, group = task % s_.hidden_groups;
        const int64_t start = group * kGroup, stop = std::min(start + kGroup, s_.hidden);
        sums.tensor.zero_();
        for (int64_t number = part * slice; number < std::min((part + 1) * slice, queries_); ++number) {
          const int64_t query = first_ + number;
          position_.activate(query, start, stop, activation.data);
          convolve(
              Convolution<T>{
                  grad_convolved(number, 0) + s_.gradient_start - s_.margin,
                  transposed_weight_.const_data_ptr<T>() + group * s_.heads * kTaps * kGroup, grad_activation.data,
                  s_.heads, 1, s_.stride, s_.pitch, s_.window});
          add_grad_weight(
              GradWeight<T>{
                  grad_convolved(number, 0) + s_.gradient_start, activation.data, sums.data, s_.head_groups,
                  s_.stride, s_.pitch, s_.convolved});
          for (int64_t channel = start; channel < stop; ++channel) {
            const int64_t index = channel * s_.tokens + s_.window_of(query), flat = (channel - start) * s_.stride;
            add_grad_plane(
                GradActivation<T>{
                    activation.data + flat, grad_activation.data + flat,
                    position_.plane + channel * s_.plane_stride + s_.window_start(query), inside_.data,
                    position_.scale[index],
                    grad_plane + (part * s_.hidden + channel) * s_.plane_stride + s_.window_start(query),
                    grad_scale + index, grad_shift + index, s_.height + 2, s_.pitch, s_.plane_pitch});
          }
        }
        for (int64_t index = 0; index < weights; ++index)
          for (int64_t lane = 0; lane < kPositions; ++lane)
            grad_weight[task * weights + index] += sums.data[index * kPositions + lane];
      }
    });
  }

  const Sizes s_;
  const Position<T> position_;
  const int64_t band_;  // queries of a band, whole blocks
  const T *query_, *grad_output_, *logsumexp_;
  const Tensor key_blocks_, value_blocks_, key_rows_, query_rows_, grad_output_rows_;
  const Tensor transposed_weight_;
  const Buffer<T> inside_;
  // These are of the band: (heads, queries, key_stride), (heads, queries) and (queries, head_groups * kGroup,
  // stride). The gradients of the convolution's outputs lie between zeros.
  const Buffer<T> normalized_, log_phi_, grad_log_phi_, weights_, grad_logits_, inverse_deviation_, grad_convolved_;
  const Tensor grad_plane_;                         // (slices, channels, plane_stride)
  const Tensor grad_weight_;                        // (slices, hidden_groups, head_groups, kGroup, 3, kGroup, 3)
  const Tensor grad_norm_weight_, grad_norm_bias_;  // (heads, H * W): the sums of each query
  const Tensor grad_key_, grad_value_;              // (B, heads, H * W and more, padded_dims)
  PeripheralInputs grad_;
  int64_t first_ = 0, queries_ = 0;  // the present band
};

}  // namespace

PeripheralForward forward(const PeripheralInputs& inputs, double eps) {
  Tensor output = empty_like(inputs.query);
  Tensor logsumexp = empty(inputs.query.sizes().slice(0, 3), inputs.query.options());
  dispatch<float, double>(inputs.query.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    forward<scalar_t>(inputs, eps, output, logsumexp);
  });
  return {output, logsumexp};
}

PeripheralInputs backward(
    const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp) {
  PeripheralInputs gradients;
  dispatch<float, double>(inputs.query.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    gradients = Backward<scalar_t>(grad_output, inputs, eps, logsumexp).run();
  });
  return gradients;
}

}  // namespace bioattn_mm::BIOATTN_ISA::peripheral_attention
