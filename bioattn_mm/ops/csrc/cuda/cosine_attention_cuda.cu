// Aggregated attention from the projections on, on a GPU: each token and head has one thread, with all channels in
// registers. Sums over the tokens have one order, whatever the GPU: results repeat to the last bit.

#include "cosine_attention.h"

#include "cuda/aggregated_attention.cuh"

namespace bioattn_mm {
namespace {

constexpr float kSmallestNorm = 1e-6f;

template <typename T>
__device__ __forceinline__ void load_group(float* x, const T* address) {
  constexpr int kSize = Chunk<T>::kSize;
#pragma unroll
  for (int v = 0; v < kTile; v += kSize) {
    const Chunk<T> vector = load_chunk(address + v);
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[v + i] = static_cast<float>(vector.elements[i]);
  }
}

template <typename T>
__device__ __forceinline__ void store_group(T* address, const float* x) {
  constexpr int kSize = Chunk<T>::kSize;
#pragma unroll
  for (int v = 0; v < kTile; v += kSize) {
    Chunk<T> vector;
#pragma unroll
    for (int i = 0; i < kSize; ++i) vector.elements[i] = static_cast<T>(x[v + i]);
    *reinterpret_cast<Chunk<T>*>(address + v) = vector;
  }
}

// The channels of a token and head; zeros beyond the last.
template <int kGroups>
struct Channels {
  template <typename T>
  __device__ static Channels load(const T* address, int channels) {
    Channels result;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      if (has_group<kGroups>(c, channels))
        load_group(result.x + kTile * c, address + kTile * c);
      else
#pragma unroll
        for (int i = 0; i < kTile; ++i) result.x[kTile * c + i] = 0;
    }
    return result;
  }

  template <typename T>
  __device__ void store(T* address, int channels) const {
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      if (has_group<kGroups>(c, channels)) store_group(address + kTile * c, x + kTile * c);
  }

  __device__ float dot(const Channels& other) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kSize; ++c) sum = fmaf(x[c], other.x[c], sum);
    return sum;
  }

  // Divides by the norm, or by the smallest one if the norm is smaller, and returns what it divided by.
  __device__ float normalise() {
    const float own = sqrtf(dot(*this)), norm = own <= kSmallestNorm ? kSmallestNorm : own, inverse = 1 / norm;
#pragma unroll
    for (int c = 0; c < kSize; ++c) x[c] *= inverse;
    return norm;
  }

  // Makes the gradient of the unit vector that of the vector: the part along the vector changes its norm alone.
  __device__ void through_norm(const Channels& unit, float norm) {
    const float along = norm > kSmallestNorm ? dot(unit) : 0, inverse = 1 / norm;
#pragma unroll
    for (int c = 0; c < kSize; ++c) x[c] = (x[c] - along * unit.x[c]) * inverse;
  }

  static constexpr int kSize = kTile * kGroups;
  float x[kSize];
};

// The projected queries and the parameters that they are scaled by.
template <typename T>
struct Queries : WindowSizes<int> {
  explicit Queries(const CosineInputs& inputs)
      : WindowSizes<int>(inputs.query, inputs.window_bias.size(1)),
        query(DataOf{inputs.query}),
        query_stride(inputs.query.stride(2)),
        scale(DataOf{inputs.scale}),
        embedding(DataOf{inputs.query_embedding}),
        tokens(DataOf{inputs.tokens}),
        token_bias(DataOf{inputs.token_bias}),
        number(batch * height * width),
        pooled(inputs.pooled_key_value.size(1) * inputs.pooled_key_value.size(2)) {}

  __device__ int64_t place(int token, int head) const { return static_cast<int64_t>(token) * heads + head; }

  // The channels of a projected query.
  __device__ const T* at(int token, int head) const { return query + token * query_stride + head * channels; }

  // The logarithm of the number of a query's keys: those of its window inside of the image, and the pooled ones.
  __device__ float log_keys(int token) const {
    const int row = token / width % height, column = token % width, margin = window / 2;
    const auto inside = [&](int i, int length) {
      const int last = i + margin < length ? i + margin : length - 1;
      return last - (i > margin ? i - margin : 0) + 1;
    };
    return logf(static_cast<float>(inside(row, height) * inside(column, width) + pooled));
  }

  const T* query;                    // (B, H, W, heads, d)
  int64_t query_stride;              // from token to token
  const float *scale, *embedding;    // (heads), (heads, d)
  const float *tokens, *token_bias;  // (heads, d, k * k), (heads, k * k)
  int number, pooled;                // tokens of all images, pooled tokens of one
};

// The parameters of a head in shared memory: learnable tokens (k * k, d), their biases and the query embedding.
struct HeadParameters {
  template <typename T>
  __device__ HeadParameters(const Queries<T>& q, int head, float* memory)
      : tokens(memory), embedding(memory + q.offsets * q.channels), token_bias(embedding + q.channels) {
    const int offsets = q.offsets, count = offsets * q.channels;
    for (int i = threadIdx.x; i < count; i += kThreads)
      tokens[i % offsets * q.channels + i / offsets] = q.tokens[head * count + i];
    for (int i = threadIdx.x; i < q.channels; i += kThreads) embedding[i] = q.embedding[head * q.channels + i];
    for (int i = threadIdx.x; i < offsets; i += kThreads) token_bias[i] = q.token_bias[head * offsets + i];
  }

  // The elements of this memory, rounded up so that the memory behind it is aligned for the widest loads.
  static __host__ __device__ int size(int offsets, int channels) {
    return round_up(offsets * channels + channels + offsets, 4);
  }

  float *tokens, *embedding, *token_bias;
};

// Writes scaled queries and the weights of the learnable tokens. Blocks are (tokens, heads).
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) scaled_queries_kernel(Queries<T> q, T* scaled, T* token_weights) {
  const int head = blockIdx.y, token = blockIdx.x * kThreads + threadIdx.x, offsets = q.offsets;
  const HeadParameters parameters(q, head, reinterpret_cast<float*>(block_memory()));
  __syncthreads();
  if (token >= q.number) return;
  using Vectors = Channels<kGroups>;
  Vectors query = Vectors::load(q.at(token, head), q.channels);
  query.normalise();
  T* const weights = token_weights + q.place(token, head) * offsets;
#pragma unroll 1
  for (int o = 0; o < offsets; ++o) {
    const Vectors token_vector = Vectors::load(parameters.tokens + o * q.channels, q.channels);
    weights[o] = static_cast<T>(parameters.token_bias[o] + query.dot(token_vector));
  }
  const Vectors embedding = Vectors::load(parameters.embedding, q.channels);
  const float factor = q.scale[head] * q.log_keys(token);
#pragma unroll
  for (int c = 0; c < Vectors::kSize; ++c) query.x[c] = (query.x[c] + embedding.x[c]) * factor;
  query.store(scaled + q.place(token, head) * q.channels, q.channels);
}

// The shared memory of the next kernel: the head's parameters, and lines of factors with an element for each token.
struct GradientMemory {
  GradientMemory(int offsets, int channels)
      : sums(offsets * channels + channels + offsets + 1), lines(2 * channels + offsets + 1) {
    const int parameters = HeadParameters::size(offsets, channels);
    const auto bytes_with = [&](int count) {
      tokens = count;
      return (parameters + lines * stride()) * static_cast<int>(sizeof(float));
    };
    for (bytes = bytes_with(kThreads); tokens > kWarpSize && bytes > kMaxBytes;) bytes = bytes_with(tokens / 2);
  }

  // This is odd, so that the same token of several lines lies in different banks.
  __host__ __device__ int stride() const { return tokens + 1; }

  static constexpr int kMaxBytes = 48 << 10;
  int sums;   // sums for the learnable tokens, the query embedding, the tokens' biases and the scale
  int lines;  // unit queries, gradients of the scaled queries, of the token weights, and of the scale
  int tokens, bytes;
};

// The groups of tokens whose sums are added up at the end, the same on every GPU. Tests define fewer.
#ifndef BIOATTN_SUM_BLOCKS
#define BIOATTN_SUM_BLOCKS 256
#endif
constexpr int kSumBlocks = BIOATTN_SUM_BLOCKS;

// Writes the gradients of the projected queries, and each block's (group of tokens, head) sums for the parameters.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) query_gradients_kernel(
    Queries<T> q, const T* grad_scaled, const T* grad_token_weights, T* grad_query, float* sums, GradientMemory m) {
  using Vectors = Channels<kGroups>;
  const int head = blockIdx.y, offsets = q.offsets, stride = m.stride(), own = threadIdx.x;
  float* const memory = reinterpret_cast<float*>(block_memory());
  const HeadParameters parameters(q, head, memory);
  float* const units = memory + HeadParameters::size(offsets, q.channels);
  float* const grads = units + q.channels * stride;
  float* const grad_weights = grads + q.channels * stride;
  float* const grad_scales = grad_weights + offsets * stride;
  float* const own_sums = sums + (static_cast<int64_t>(blockIdx.x) * q.heads + head) * m.sums;
  __syncthreads();
  const int first_of_block = blockIdx.x * m.tokens;
#pragma unroll 1
  for (int first = first_of_block; first < q.number; first += gridDim.x * m.tokens) {
    const int token = first + own;
    if (own < m.tokens) {
      const bool exists = token < q.number;
      const int existing = exists ? token : q.number - 1;
      const int64_t place = q.place(existing, head);
      Vectors unit = Vectors::load(q.at(existing, head), q.channels);
      const float norm = unit.normalise();
      Vectors grad = Vectors::load(grad_scaled + place * q.channels, q.channels);
      const Vectors embedding = Vectors::load(parameters.embedding, q.channels);
      const float log_keys = q.log_keys(token), factor = q.scale[head] * log_keys;
      float grad_scale = 0;
#pragma unroll
      for (int c = 0; c < Vectors::kSize; ++c) {
        grad_scale = fmaf(grad.x[c], unit.x[c] + embedding.x[c], grad_scale);
        grad.x[c] *= factor;
        if (c < q.channels) {
          units[c * stride + own] = exists ? unit.x[c] : 0;
          grads[c * stride + own] = exists ? grad.x[c] : 0;
        }
      }
      grad_scales[own] = exists ? grad_scale * log_keys : 0;
#pragma unroll 1
      for (int o = 0; o < offsets; ++o) {
        const float grad_weight = static_cast<float>(grad_token_weights[place * offsets + o]);
        grad_weights[o * stride + own] = exists ? grad_weight : 0;
        const Vectors token_vector = Vectors::load(parameters.tokens + o * q.channels, q.channels);
#pragma unroll
        for (int c = 0; c < Vectors::kSize; ++c) grad.x[c] = fmaf(grad_weight, token_vector.x[c], grad.x[c]);
      }
      grad.through_norm(unit, norm);
      if (exists) grad.store(grad_query + place * q.channels, q.channels);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = own; i < m.sums; i += kThreads) {
      float sum = 0;
      const int products = offsets * q.channels;
      if (i < products) {
        const float *unit = units + i / offsets * stride, *grad_weight = grad_weights + i % offsets * stride;
#pragma unroll 8
        for (int k = 0; k < m.tokens; ++k) sum = fmaf(unit[k], grad_weight[k], sum);
      } else {  // the other lines follow each other as their sums do
        const float* const line = grads + (i - products) * stride;
#pragma unroll 8
        for (int k = 0; k < m.tokens; ++k) sum += line[k];
      }
      own_sums[i] = first == first_of_block ? sum : own_sums[i] + sum;
    }
    __syncthreads();
  }
}

struct ParameterGradients {
  float *tokens, *embedding, *token_bias, *scale;
};

// Adds up the sums of the blocks: a thread has one sum of a head.
__global__ void __launch_bounds__(kThreads) parameter_gradients_kernel(
    const float* sums, int blocks, int heads, int channels, int offsets, int number, ParameterGradients grad) {
  const int head = blockIdx.y, products = offsets * channels;
  int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= number) return;
  float sum = 0;
#pragma unroll 8
  for (int block = 0; block < blocks; ++block) sum += sums[(static_cast<int64_t>(block) * heads + head) * number + i];
  if (i < products) {
    grad.tokens[head * products + i] = sum;
  } else if (i -= products; i < channels) {
    grad.embedding[head * channels + i] = sum;
  } else if (i -= channels; i < offsets) {
    grad.token_bias[head * offsets + i] = sum;
  } else {
    grad.scale[head] = sum;
  }
}

// Keys (tokens, 2, heads, d) with values behind them, and their unit vectors (tokens, heads, d): first those of
// tokens, then, in blocks of their own, those of pooled tokens.
struct Keys {
  Keys(const CosineInputs& inputs)
      : number(tokens_of(inputs.key_value)),
        pooled(tokens_of(inputs.pooled_key_value)),
        heads(static_cast<int>(inputs.query.size(3))),
        channels(static_cast<int>(inputs.query.size(4))),
        stride(inputs.key_value.stride(2)) {}

  static int tokens_of(const Tensor& x) { return static_cast<int>(x.size(0) * x.size(1) * x.size(2)); }

  unsigned blocks() const { return blocks_of(number) + blocks_of(pooled); }
  __host__ __device__ int blocks_of(int tokens) const {
    return static_cast<int>(divide_up(static_cast<int64_t>(tokens) * heads, kThreads));
  }

  int number, pooled, heads, channels;
  int64_t stride;  // from token to token of keys and values that are not pooled
};

// The offsets of a thread's key and value in (tokens, 2, heads, d), of its unit vector in (tokens, heads, d), and of
// its key where it is read.
struct KeyPlace {
  __device__ explicit KeyPlace(const Keys& keys) {
    const int block = blockIdx.x, first = keys.blocks_of(keys.number);
    is_pooled = block >= first;
    const int64_t i = static_cast<int64_t>(is_pooled ? block - first : block) * kThreads + threadIdx.x;
    const int64_t token = i / keys.heads;
    exists = token < (is_pooled ? keys.pooled : keys.number);
    unit = i * keys.channels;
    key = unit + token * keys.heads * keys.channels;
    source = is_pooled ? key : token * keys.stride + i % keys.heads * keys.channels;
    value = key + static_cast<int64_t>(keys.heads) * keys.channels;
  }

  bool is_pooled, exists;
  int64_t key, value, unit, source;
};

template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads)
    unit_keys_kernel(const T* key_value, T* units, const T* pooled_key_value, T* pooled_units, Keys keys) {
  const KeyPlace place(keys);
  if (!place.exists) return;
  auto key = Channels<kGroups>::load((place.is_pooled ? pooled_key_value : key_value) + place.source, keys.channels);
  key.normalise();
  key.store((place.is_pooled ? pooled_units : units) + place.unit, keys.channels);
}

// The gradients of unit vectors and of values; those of pooled tokens are sums of `splits` parts.
template <typename T>
struct KeyGradients {
  const T *unit, *value;
  const float *pooled_unit, *pooled_value;
  int splits;
};

// Adds up the parts of a gradient, `stride` elements apart. They may cancel: Kahan's sum takes each rounding back.
template <int kGroups>
__device__ Channels<kGroups> sum_of_parts(const float* first, int64_t stride, int parts, int channels) {
  auto sum = Channels<kGroups>::load(first, channels);
  Channels<kGroups> rounding{};
  for (int part = 1; part < parts; ++part) {
    const auto other = Channels<kGroups>::load(first + part * stride, channels);
#pragma unroll
    for (int c = 0; c < sum.kSize; ++c) {
      const float next = other.x[c] - rounding.x[c], rounded = sum.x[c] + next;
      rounding.x[c] = (rounded - sum.x[c]) - next;
      sum.x[c] = rounded;
    }
  }
  return sum;
}

// Writes the gradients of keys and values from those of the unit vectors and of the values.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) key_gradients_kernel(
    const T* key_value, const T* pooled_key_value, KeyGradients<T> grad, T* grad_key_value, T* grad_pooled_key_value,
    Keys keys) {
  using Vectors = Channels<kGroups>;
  const KeyPlace place(keys);
  if (!place.exists) return;
  Vectors unit = Vectors::load((place.is_pooled ? pooled_key_value : key_value) + place.source, keys.channels);
  const float norm = unit.normalise();
  const int64_t stride = static_cast<int64_t>(keys.pooled) * keys.heads * keys.channels;
  const auto gradient = [&](const T* own, const float* parts) {
    return place.is_pooled ? sum_of_parts<kGroups>(parts + place.unit, stride, grad.splits, keys.channels)
                           : Vectors::load(own + place.unit, keys.channels);
  };
  T* const target = place.is_pooled ? grad_pooled_key_value : grad_key_value;
  Vectors of_key = gradient(grad.unit, grad.pooled_unit);
  of_key.through_norm(unit, norm);
  of_key.store(target + place.key, keys.channels);
  gradient(grad.value, grad.pooled_value).store(target + place.value, keys.channels);
}

// The position bias of each pair (query column, pooled column) from a table (rows, columns), and the window's bias,
// in the dtype of the tokens. Blocks are those of a row after the other.
template <typename T>
__global__ void __launch_bounds__(kThreads) biases_kernel(
    const float* table, const int64_t* columns, int64_t rows, int pairs, int num_columns, T* bias,
    const float* window_bias, int num_offsets, T* rounded_window_bias) {
  for (int i = threadIdx.x; blockIdx.x == 0 && i < num_offsets; i += kThreads)
    rounded_window_bias[i] = static_cast<T>(window_bias[i]);
  const int blocks = max(divide_up(pairs, kThreads), 1), pair = blockIdx.x % blocks * kThreads + threadIdx.x;
  const int64_t row = blockIdx.x / blocks;
  if (pair >= pairs || row >= rows) return;
  const int64_t column = columns[pair];
  BIOATTN_KERNEL_ASSERT(0 <= column && column < num_columns, "pooled_bias_columns must be columns of pooled_bias");
  bias[row * pairs + pair] = static_cast<T>(table[row * num_columns + column]);
}

// The gradient of the table: for each element the sum over the pairs of its column.
template <typename T>
__global__ void __launch_bounds__(kThreads) table_gradients_kernel(
    const T* grad_bias, const int* order, const Range* ranges, int pairs, int num_columns, float* grad_table) {
  const int blocks = divide_up(num_columns, kThreads), column = blockIdx.x % blocks * kThreads + threadIdx.x;
  const int64_t row = blockIdx.x / blocks;
  if (column >= num_columns) return;
  const Range range = ranges[column];
  float sum = 0;
#pragma unroll 4
  for (int k = range.begin; k < range.end; ++k) sum += static_cast<float>(grad_bias[row * pairs + order[k]]);
  grad_table[row * num_columns + column] = sum;
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>(divide_up(count, kThreads)); }

CosineInputs dense_inputs(const CosineInputs& inputs) {
  return map(inputs, [](const auto& input) { return dense(input); });
}

// The inputs of aggregated attention, from dense ones.
template <int kGroups, typename T>
Inputs normalised(const CosineInputs& inputs) {
  const Queries<T> q(inputs);
  const auto tokens = inputs.query.sizes();
  const auto options = inputs.query.options();
  Tensor query = empty(tokens, options);
  Tensor token_weights = empty({tokens[0], tokens[1], tokens[2], tokens[3], q.offsets}, options);
  launch(
      scaled_queries_kernel<kGroups, T>, dim3(blocks_for(q.number), q.heads), kThreads,
      HeadParameters::size(q.offsets, q.channels) * sizeof(float), q, query, token_weights);

  const Tensor &table = inputs.pooled_bias, &columns = inputs.pooled_bias_columns;
  Tensor pooled_bias = empty({table.size(0), table.size(1), columns.size(0), columns.size(1)}, options);
  Tensor window_bias = empty(inputs.window_bias.sizes(), options);
  const int64_t rows = table.size(0) * table.size(1);
  launch(
      biases_kernel<T>, std::max(static_cast<unsigned>(rows * blocks_for(columns.numel())), 1u), kThreads, 0, table,
      columns, rows, static_cast<int>(columns.numel()), static_cast<int>(table.size(2)), pooled_bias,
      inputs.window_bias, static_cast<int>(window_bias.numel()), window_bias);

  const Tensor key = empty_like(inputs.key_value.select(3, 0)),
               pooled_key = empty_like(inputs.pooled_key_value.select(3, 0));
  const Keys keys(inputs);
  launch(
      unit_keys_kernel<kGroups, T>, keys.blocks(), kThreads, 0, inputs.key_value, key, inputs.pooled_key_value,
      pooled_key, keys);
  return {query,       key,         inputs.key_value.select(3, 1), pooled_key,   inputs.pooled_key_value.select(3, 1),
          window_bias, pooled_bias, inputs.pooled_bias_rows,       token_weights};
}

// Calls function(std::integral_constant<int, kGroups>(), T()) for the inputs' channels and dtype.
template <typename Function>
void for_inputs(const CosineInputs& inputs, const Function& function) {
  for_float_dtypes(inputs.query, [&](auto zero) {
    for_sizes(inputs.query.size(4), /*window=*/0, [&](auto groups, auto) { function(groups, zero); });
  });
}

}  // namespace

RoundedForward cosine_attention_forward_cuda(const CosineInputs& any_inputs, bool for_backward) {
  const DeviceGuard guard(any_inputs.query.device());
  const CosineInputs inputs = dense_inputs(any_inputs);
  Inputs of_attention;
  for_inputs(inputs, [&](auto groups, auto zero) {
    of_attention = normalised<decltype(groups)::value, decltype(zero)>(inputs);
  });
  const auto [output, logsumexp, rounding] =
      aggregated_attention_of_sums(of_attention, for_backward, inputs.pooled_bias_weights);
  return {output, logsumexp.view({logsumexp.numel()}), rounding};
}

CosineGradients cosine_attention_backward_cuda(
    const Tensor& grad_output, const CosineInputs& any_inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding) {
  const DeviceGuard guard(any_inputs.query.device());
  const CosineInputs inputs = dense_inputs(any_inputs);
  const Tensor shaped = logsumexp.contiguous().view(inputs.query.sizes().slice(0, 4));
  CosineInputs grad = map(inputs, empty_like);
  for_inputs(inputs, [&](auto groups, auto zero) {
    constexpr int kGroups = decltype(groups)::value;
    using T = decltype(zero);
    const Inputs of_attention = aggregated_attention_backward_sums(
        grad_output, normalised<kGroups, T>(inputs), output, shaped, rounding, inputs.pooled_bias_weights);
    grad.window_bias = of_attention.window_bias;

    const Queries<T> q(inputs);
    const GradientMemory memory(q.offsets, q.channels);
    const int blocks = std::min(divide_up(q.number, memory.tokens), kSumBlocks);
    const Tensor sums = empty({blocks, q.heads, memory.sums}, inputs.scale.options());
    launch(
        query_gradients_kernel<kGroups, T>, dim3(blocks, q.heads), kThreads, memory.bytes, q, of_attention.query,
        of_attention.token_weights, grad.query, sums, memory);
    const ParameterGradients of_parameters{
        DataOf{grad.tokens}, DataOf{grad.query_embedding}, DataOf{grad.token_bias}, DataOf{grad.scale}};
    launch(
        parameter_gradients_kernel, dim3(blocks_for(memory.sums), q.heads), kThreads, 0, sums, blocks, q.heads,
        q.channels, q.offsets, memory.sums, of_parameters);
    const Keys keys(inputs);
    const KeyGradients<T> of_keys{
        DataOf{of_attention.key}, DataOf{of_attention.value}, DataOf{of_attention.pooled_key},
        DataOf{of_attention.pooled_value}, static_cast<int>(of_attention.pooled_key.size(0))};
    launch(
        key_gradients_kernel<kGroups, T>, keys.blocks(), kThreads, 0, inputs.key_value, inputs.pooled_key_value,
        of_keys, grad.key_value, grad.pooled_key_value, keys);

    const Tensor &table = inputs.pooled_bias, &columns = inputs.pooled_bias_columns;
    const auto [order, ranges] = pairs_by_row(columns, table.size(2));
    launch(
        table_gradients_kernel<T>, static_cast<unsigned>(table.size(0) * table.size(1) * blocks_for(table.size(2))),
        kThreads, 0, of_attention.pooled_bias, order, ranges, static_cast<int>(columns.numel()),
        static_cast<int>(table.size(2)), grad.pooled_bias);
  });
  return to_gradients(grad);
}

}  // namespace bioattn_mm
