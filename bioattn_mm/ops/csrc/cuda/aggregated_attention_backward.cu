// Aggregated attention on CUDA, backward: weights are computed again from the inputs and the logsumexp. One thread or
// warp adds up each sum, always in the same order.
//
// query_kernel: gradients of queries and token weights; sums for the window bias; Statistics of queries
// window_kernel: gradients of the window keys and values, gathered from the queries in whose windows they are
// pooled_kernel: gradients of the pooled keys and values, one partial sum for each group of queries
// pairs_kernel: the pairs of query and pooled row that share a row of the pooled bias
// pooled_bias_kernel: gradient of the pooled bias from these pairs
//
// The gradient of a logit is weight * (gradient of the weight - mean of these gradients under the weights).

#include "cuda/aggregated_attention.cuh"

namespace bioattn_mm {
namespace {

// The number of blocks that a multiprocessor must be able to hold. It limits the registers of a thread.
template <int kGroups, typename T>
constexpr int kBlocksPerMultiprocessor = kGroups <= 3 && sizeof(T) == 2 ? 3 : 2;

// The softmax of a query, as far as the backward pass needs it.
struct alignas(8) Statistics {
  float shift;       // kLog2e * logsumexp: weight = 2^(kLog2e * logit - shift)
  float minus_mean;  // minus the mean of the weights' gradients
};

template <typename T>
struct BackwardArguments : Arguments<T> {
  const T *grad_output, *output, *rounding;  // `rounding` is null for float32
  int grad_output_stride;
  const float* logsumexp;
  const T* bias_of_keys;   // (heads, R, Pw, columns), pooled_bias with columns of queries in whole runs
  Statistics* statistics;  // (B, heads, H, columns), written by query_kernel; beyond the image no query has a weight
  MutablePointers<T> grad;

  // The bytes from a token to the next, where tokens are contiguous.
  __device__ int token_stride() const { return this->heads * this->channels * static_cast<int>(sizeof(T)); }

  __device__ Statistics* statistics_of(int image, int head, int i) const {
    return offset_pointer(statistics, (image * this->heads + head) * this->height + i, row_of_statistics());
  }
  __device__ int row_of_statistics() const {
    return this->queries.padded_width * static_cast<int>(sizeof(Statistics));
  }
};

__device__ __forceinline__ float weight_of(float logit, float shift) {
  return power_of_two(fmaf(kLog2e, logit, -shift));
}

// The gradients of the logits of four tiles, from the logits and the weights' gradients minus their mean.
template <typename T>
__device__ __forceinline__ void logit_gradients(
    Pair<T> (&grad_logits)[4][2], const float (&logits)[4][4], const float (&grad_weights)[4][4],
    const float (&shift)[2]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      grad_logits[n][r] = make_pair<T>(
          weight_of(logits[n][2 * r], shift[r]) * grad_weights[n][2 * r],
          weight_of(logits[n][2 * r + 1], shift[r]) * grad_weights[n][2 * r + 1]);
  }
}

template <int kGroups, int kWindow, bool kSums, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<kGroups, T>)
    query_kernel(BackwardArguments<T> p, float* window_bias_sums) {
  char* const shared_memory = block_memory();
  const Place place(p);
  const int g = place.g, t = place.t, lane = threadIdx.x % kWarpSize;
  const int token_stride = p.token_stride();

  Pair<T> query[kGroups][2], grad[kGroups][2];
  load_rows(query, p.query + place.channel, place.token, p.stride.query, p.channels);
  load_rows(grad, p.grad_output + place.channel, place.token, p.grad_output_stride, p.channels);

  // The window part: logits of the warp's queries and gradients of their weights; -inf and 0 outside of the image.
  const int window = window_of<kWindow>(p), offsets = window * window, of_warp = kWarpQueries * offsets;
  float* const warp_logits = reinterpret_cast<float*>(shared_memory) + place.warp * of_warp;
  float* const warp_grads = warp_logits + kWarps * of_warp;
#pragma unroll kWindow ? 5 : 1
  for (int k = lane; k < of_warp; k += kWarpSize) warp_logits[k] = -INFINITY, warp_grads[k] = 0;
  __syncwarp();
  const T *keys = p.key + place.channel, *values = p.value + place.channel;
  int key_stride = p.stride.key, value_stride = p.stride.value;
  optimisation_barrier(keys, values, key_stride, value_stride);
  // Lanes 0 and 1 of a quad have the logits of the query in row t % 2, the others the gradients of its weights.
  float* const lane_products = (t < 2 ? warp_logits : warp_grads) + (g + t % 2 * kTile) * offsets - t % 2 * window;
  for_windows<kWindow>(p, place, [&](int dy, int dx, bool inside, int token) {
    Pair<T> key[kGroups], value[kGroups];
    load_channels(key, offset_pointer(keys, token, key_stride), p.channels);
    load_channels(value, offset_pointer(values, token, value_stride), p.channels);
    float products[4] = {0, 0, 0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        products[r] = add_dot(products[r], query[c][r], key[c]);
        products[2 + r] = add_dot(products[2 + r], grad[c][r], value[c]);
      }
    }
    const float product = quad_sums(products, t);
    int stores = inside && (t % 2 == 0 ? dy < window : dy > 0);
    optimisation_barrier(stores);
    if (stores) lane_products[dy * window + dx] = product;
  });
  __syncwarp();
  float* const own_logits[2] = {warp_logits + g * offsets, warp_logits + (g + kTile) * offsets};
  float* const own_grads[2] = {warp_grads + g * offsets, warp_grads + (g + kTile) * offsets};
  const T* const window_bias = p.window_bias + place.head * offsets;
  const int weights_stride = p.heads * offsets * static_cast<int>(sizeof(T));
  float shift[2], minus_mean[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    shift[r] = kLog2e * p.logsumexp[static_cast<int64_t>(place.token[r]) * p.heads + place.head];
    // grad_output . output is the mean of the gradients, plus the part of the token weights, which is subtracted.
    float mean = 0;
    const auto add_mean = [&](const T* part_of_output) {
      Pair<T> output[kGroups];
      load_channels(output, offset_pointer(part_of_output + place.channel, place.token[r], token_stride), p.channels);
#pragma unroll
      for (int c = 0; c < kGroups; ++c) mean = add_dot(mean, grad[c][r], output[c]);
    };
    add_mean(p.output);
    if constexpr (sizeof(T) == 2) add_mean(p.rounding);
    const T* const weights = offset_pointer(p.token_weights + place.head * offsets, place.token[r], weights_stride);
    T* const grad_weights =
        offset_pointer(p.grad.token_weights + place.head * offsets, place.token[r], weights_stride);
    for_offsets<kWindow>(p, t, [&](int o) {
      mean -= static_cast<float>(weights[o]) * own_grads[r][o];
      if (place.inside[r]) grad_weights[o] = static_cast<T>(own_grads[r][o]);
    });
    minus_mean[r] = -quad_sum(mean);
    for_offsets<kWindow>(p, t, [&](int o) {
      const float weight = weight_of(own_logits[r][o] + static_cast<float>(window_bias[o]), shift[r]);
      own_logits[r][o] = place.inside[r] ? weight * (own_grads[r][o] + minus_mean[r]) : 0;
    });
    if (t == 0 && place.top + r < p.height)
      p.statistics_of(place.image, place.head, place.row[r])[place.column] = {
          place.inside[r] ? shift[r] : INFINITY, place.inside[r] ? minus_mean[r] : 0};
  }
  __syncwarp();

  // The gradient of the window bias is summed over the warp's queries, then over the block's warps.
#pragma unroll kWindow ? 3 : 1
  for (int first = 0; first < offsets; first += 4) {
    const int o = first + t;
    float sum = o < offsets ? own_logits[0][o] + own_logits[1][o] : 0;
#pragma unroll
    for (int distance = 4; distance < kWarpSize; distance *= 2) sum += __shfl_xor_sync(kFullWarp, sum, distance);
    if (g == 0 && o < offsets) warp_grads[o] = sum;
  }
  float sums[kGroups][4] = {};
  add_windows<kWindow>(sums, p, place, keys, key_stride, own_logits);
  __syncthreads();
#pragma unroll 1
  for (int o = threadIdx.x; o < offsets; o += kThreads) {
    const float* const first = reinterpret_cast<float*>(shared_memory) + kWarps * of_warp + o;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += first[warp * of_warp];
    const int64_t block = static_cast<int64_t>(place.image) * gridDim.x + blockIdx.x;
    window_bias_sums[(block * p.heads + place.head) * offsets + o] = sum;
  }

  // The pooled part goes over the runs of pooled keys, in shared memory.
  const Grid& pooled = p.pooled_keys;
  if (pooled.runs > 0) {
    __syncthreads();
    auto stage = stage_of_pooled_tokens<kGroups>(shared_memory, p, place);
    const RunBias<kSums, T> bias = bias_of_queries<kSums>(p, place);
    Run run = Run().behind(pooled, t);
    stage.copy(pooled, 0, p.channels);
#pragma unroll 1
    for (int first = 0, buffer = 0; first < pooled.runs; first += kTiles<T>, buffer ^= 1) {
      wait_for_copies();
      __syncthreads();  // every thread has copied these keys, and none still reads those before
      if (first + kTiles<T> < pooled.runs) stage.copy(pooled, buffer ^ 1, p.channels);
#pragma unroll
      for (int n = 0; n < kTiles<T>; n += 4) {
        float logits[4][4], grad_weights[4][4];
        bias.start(logits, pooled, run);
        run.advance(pooled);
#pragma unroll
        for (int k = 0; k < 16; ++k) grad_weights[k / 4][k % 4] = minus_mean[k % 4 / 2];
        multiply_by_rows(logits, query, stage.first(buffer), kTile * n);
        multiply_by_rows(grad_weights, grad, stage.second(buffer), kTile * n);
        Pair<T> grad_logits[4][2];
        logit_gradients(grad_logits, logits, grad_weights, shift);
        add_product_of_rows(sums, grad_logits, stage.first(buffer), kTile * n);
      }
    }
  }
  store_rows(p.grad.query + place.channel, sums, place.token, place.inside, token_stride, p.channels);
}

// In this kernel the lane's two tokens are keys, and the tokens in their windows are the queries that attend to them.
template <int kGroups, int kWindow, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<kGroups, T>)
    window_kernel(BackwardArguments<T> p) {
  const Place place(p);
  const int t = place.t;
  Pair<T> key[kGroups][2], value[kGroups][2];
  load_rows(key, p.key + place.channel, place.token, p.stride.key, p.channels);
  load_rows(value, p.value + place.channel, place.token, p.stride.value, p.channels);

  const int window = window_of<kWindow>(p), offsets = window * window;
  const T *queries = p.query + place.channel, *grads = p.grad_output + place.channel;
  const T *token_weights = p.token_weights + place.head * offsets,
          *window_bias = p.window_bias + place.head * offsets;
  const Statistics* statistics = p.statistics_of(place.image, place.head, 0);
  int query_stride = p.stride.query, grad_stride = p.grad_output_stride;
  int weights_stride = p.heads * offsets * static_cast<int>(sizeof(T)), row = p.row_of_statistics();
  optimisation_barrier(
      queries, grads, token_weights, window_bias, statistics, query_stride, grad_stride, weights_stride, row);
  const int r_of_lane = t % 2;

  float key_sums[kGroups][4] = {}, value_sums[kGroups][4] = {};
  for_windows<kWindow, 1>(p, place, [&](int dy, int dx, bool inside, int token) {
    Pair<T> query[kGroups], grad[kGroups];
    load_channels(query, offset_pointer(queries, token, query_stride), p.channels);
    load_channels(grad, offset_pointer(grads, token, grad_stride), p.channels);
    float products[4] = {0, 0, 0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        products[r] = add_dot(products[r], query[c], key[c][r]);
        products[2 + r] = add_dot(products[2 + r], grad[c], value[c][r]);
      }
    }
    // Lanes t and t + 2 of a quad compute the weight of the key in row t % 2.
    const float product = quad_sums(products, t), other = __shfl_xor_sync(kFullWarp, product, 2);
    int of_grads = t / 2, exists = inside && (r_of_lane == 0 ? dy < window : dy > 0);
    optimisation_barrier(of_grads, exists);
    const float logit = of_grads ? other : product, grad_weight = of_grads ? product : other;
    // In the window of the query, this key has the opposite offset.
    const int offset = exists ? offsets - 1 - (dy - r_of_lane) * window - dx : 0;
    const int i = exists ? place.top - window / 2 + dy : 0, j = exists ? place.column - window / 2 + dx : 0;
    const Statistics of_query = offset_pointer(statistics, i, row)[j];
    float weight = weight_of(logit + static_cast<float>(window_bias[offset]), of_query.shift);
    float factor = weight + static_cast<float>(offset_pointer(token_weights, token, weights_stride)[offset]);
    float grad_logit = weight * (grad_weight + of_query.minus_mean);
    if (!exists) factor = grad_logit = 0;
    const float other_factor = __shfl_xor_sync(kFullWarp, factor, 1);
    const float other_grad_logit = __shfl_xor_sync(kFullWarp, grad_logit, 1);
    int odd = r_of_lane;
    optimisation_barrier(odd);
    const float factors[2] = {odd ? other_factor : factor, odd ? factor : other_factor};
    const float grad_logits[2] = {odd ? other_grad_logit : grad_logit, odd ? grad_logit : other_grad_logit};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      add_scaled(key_sums, r, grad_logits[r], query);
      add_scaled(value_sums, r, factors[r], grad);
    }
  });
  store_rows(p.grad.key + place.channel, key_sums, place.token, place.inside, p.token_stride(), p.channels);
  store_rows(p.grad.value + place.channel, value_sums, place.token, place.inside, p.token_stride(), p.channels);
}

// A warp has sixteen pooled keys, two runs. Blocks are (groups of keys, heads, batch * splits): each split sums over
// kTiles<T> runs of queries in each of rounds_in_split rounds.
template <int kGroups, bool kSums, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<kGroups, T>)
    pooled_kernel(BackwardArguments<T> p, int rounds_in_split, float* pooled_key_sums, float* pooled_value_sums) {
  const Grid& queries = p.queries;
  const int warp = threadIdx.x / kWarpSize, g = threadIdx.x % kWarpSize / 4, t = threadIdx.x % 4;
  const int head = blockIdx.y, image = blockIdx.z % p.batch, split = blockIdx.z / p.batch;
  const int head_channel = head * p.channels, channel = head_channel + 2 * t;

  // The lane's keys and their biases over the queries.
  const int summands = summands_of<kSums>(p);
  RunBias<kSums, T> bias;
  bias.row_stride = p.pooled_height * summands * static_cast<int>(sizeof(int64_t));
  bias.weights_stride = p.pooled_height * (summands - 1) * static_cast<int>(sizeof(float)), bias.summands = summands;
  bias.size = p.pooled_width * queries.padded_width * static_cast<int>(sizeof(T));
  const Run first_key(p.pooled_keys, (blockIdx.x * kWarps + warp) * 2);
  int token[2];
  bool exists[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Run run = first_key.behind(p.pooled_keys, r);
    exists[r] = run.row < p.pooled_height && run.column + g < p.pooled_width;
    const int u = clamp(run.row, p.pooled_height - 1), v = clamp(run.column + g, p.pooled_width - 1);
    token[r] = (image * p.pooled_height + u) * p.pooled_width + v;
    bias.rows[r] = p.pooled_bias_rows + u * summands, bias.weights[r] = p.bias_weights + u * (summands - 1);
    bias.data[r] = offset_pointer(p.bias_of_keys, head * p.bias_rows, bias.size) + v * queries.padded_width;
    optimisation_barrier(bias.rows[r], bias.data[r]);
  }
  optimisation_barrier(bias.row_stride, bias.size);
  Pair<T> key[kGroups][2], value[kGroups][2];
  load_rows(key, p.pooled_key + channel, token, p.stride.pooled_key, p.channels);
  load_rows(value, p.pooled_value + channel, token, p.stride.pooled_value, p.channels);

  const int begin = split * rounds_in_split * kTiles<T>,
            end = clamp(begin + rounds_in_split * kTiles<T>, queries.runs);
  float key_sums[kGroups][4] = {}, value_sums[kGroups][4] = {};
  if (begin < end) {
    const Run first_run(queries, begin);
    const int first_token = image * p.height * p.width;
    Stage<kGroups, T> stage(
        block_memory(), queries, first_run, offset_pointer(p.query, first_token, p.stride.query) + head_channel,
        p.stride.query, offset_pointer(p.grad_output, first_token, p.grad_output_stride) + head_channel,
        p.grad_output_stride);
    const Statistics* statistics = p.statistics_of(image, head, 0);
    int row_of_statistics = p.row_of_statistics();
    optimisation_barrier(statistics, row_of_statistics);
    Run run = first_run.behind(queries, t);
    stage.copy(queries, 0, p.channels);
#pragma unroll 1
    for (int first = begin, buffer = 0; first < end; first += kTiles<T>, buffer ^= 1) {
      wait_for_copies();
      __syncthreads();  // every thread has copied these queries, and none still reads those before
      if constexpr (sizeof(T) == 4)
        optimisation_barrier(key, value);  // without it their two tf32 parts would stay in registers, too
      if (first + kTiles<T> < end) stage.copy(queries, buffer ^ 1, p.channels);
#pragma unroll
      for (int n = 0; n < kTiles<T>; n += 4) {
        float weights[4][4], grad_logits[4][4], shift[kTile];
        bias.start(weights, queries, run);
        // Beyond the end of the grid biases are -inf, so that it does not matter whose statistics are read.
        const Statistics* const of_run =
            offset_pointer(statistics, run.row < queries.height ? run.row : 0, row_of_statistics) + run.column;
#pragma unroll
        for (int k = 0; k < kTile; k += 2) {
          const Chunk<float> two = load_chunk(reinterpret_cast<const float*>(of_run + k));
          shift[k] = two.elements[0], shift[k + 1] = two.elements[2];
          grad_logits[k / 2][0] = grad_logits[k / 2][2] = two.elements[1];
          grad_logits[k / 2][1] = grad_logits[k / 2][3] = two.elements[3];
        }
        run.advance(queries);
        multiply_by_rows(weights, key, stage.first(buffer), kTile * n);
        multiply_by_rows(grad_logits, value, stage.second(buffer), kTile * n);
        Pair<T> left[4][2];
#pragma unroll
        for (int k = 0; k < 16; ++k) {
          weights[k / 4][k % 4] = weight_of(weights[k / 4][k % 4], shift[k / 4 * 2 + k % 2]);
          grad_logits[k / 4][k % 4] *= weights[k / 4][k % 4];
        }
#pragma unroll
        for (int k = 0; k < 8; ++k)
          left[k / 2][k % 2] = make_pair<T>(weights[k / 2][k % 2 * 2], weights[k / 2][k % 2 * 2 + 1]);
        add_product_of_rows(value_sums, left, stage.second(buffer), kTile * n);
#pragma unroll
        for (int k = 0; k < 8; ++k)
          left[k / 2][k % 2] = make_pair<T>(grad_logits[k / 2][k % 2 * 2], grad_logits[k / 2][k % 2 * 2 + 1]);
        add_product_of_rows(key_sums, left, stage.first(buffer), kTile * n);
      }
    }
  }
  const int stride = p.heads * p.channels * static_cast<int>(sizeof(float));
  const int first_token = split * p.batch * p.pooled;
  store_rows(
      offset_pointer(pooled_key_sums, first_token, stride) + channel, key_sums, token, exists, stride, p.channels);
  store_rows(
      offset_pointer(pooled_value_sums, first_token, stride) + channel, value_sums, token, exists, stride,
      p.channels);
}

// Loads channels of a token for sums over all channels, in which their order does not matter: a lane loads four
// neighbours of sixteen channels at once, as long as there are sixteen. `token` is 2t channels into the head.
template <int kGroups, typename T>
__device__ __forceinline__ void load_in_any_order(Pair<T> (&pairs)[kGroups], const T* token, int channels, int t) {
  struct alignas(4 * sizeof(T)) Four {
    Pair<T> pairs[2];
  };
  const T* const fours = token + 2 * t;
#pragma unroll
  for (int c = 0; c < kGroups; c += 2) {
    if (c + 1 < kGroups && has_group<kGroups>(c + 1, channels)) {
      const Four four = *reinterpret_cast<const Four*>(fours + kTile * c);
      pairs[c] = four.pairs[0], pairs[c + 1] = four.pairs[1];
    } else {
      pairs[c] = has_group<kGroups>(c, channels) ? load_pair(token + kTile * c) : Pair<T>{T(0), T(0)};
      if (c + 1 < kGroups) pairs[c + 1] = {T(0), T(0)};
    }
  }
}

// products (16 x 8) += a (16 x channels) b (channels x 8).
template <int kGroups, typename T>
__device__ __forceinline__ void multiply_channels(
    float (&products)[4], const Pair<T> (&a)[kGroups][2], const Pair<T> (&b)[kGroups]) {
#pragma unroll
  for (int c = 0; c + 1 < kGroups; c += 2) multiply_add(products, a[c], a[c + 1], b[c], b[c + 1]);
  if constexpr (kGroups % 2) multiply_add(products, a[kGroups - 1], b[kGroups - 1]);
}

// Writes the indices of all pairs (query row, pooled row), sorted by their row of the bias, and the range of each
// row. A warp has a row, and reads all pairs twice: to count those of rows before it, then to write its own.
__global__ void __launch_bounds__(kThreads)
    pairs_kernel(const int64_t* rows, int count, int bias_rows, int* pairs, Range* ranges) {
  const int lane = threadIdx.x % kWarpSize, row = blockIdx.x * kWarps + threadIdx.x / kWarpSize;
  if (row >= bias_rows) return;
  int in_front = 0;
#pragma unroll 4
  for (int pair = lane; pair < count; pair += kWarpSize) in_front += rows[pair] < row;
  in_front = warp_sum(in_front);
  int index = in_front;
#pragma unroll 4
  for (int first = 0; first < count; first += kWarpSize) {
    const bool is_own = first + lane < count && rows[first + lane] == row;
    const unsigned own = __ballot_sync(kFullWarp, is_own);
    if (is_own) pairs[index + __popc(own & ((1u << lane) - 1))] = first + lane;
    index += __popc(own);
  }
  if (lane == 0) ranges[row] = {in_front, index};
}

constexpr int kBiasTiles = 2;  // the tiles of pooled columns in a block of pooled_bias_kernel

// A block sums over the pairs of one row of the bias, for 64 columns of queries and some tiles of pooled columns.
// If biases are sums of rows, a block has one pair in place of a row: these are counted from `first_pair` on. The
// gradients that it writes are (heads, gridDim.x, W, Pw).
template <int kGroups, bool kSums, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<kGroups, T>)
    pooled_bias_kernel(BackwardArguments<T> p, const int* pairs, const Range* ranges, int first_pair, T* grad_bias) {
  const int warp = threadIdx.x / kWarpSize, g = threadIdx.x % kWarpSize / 4, t = threadIdx.x % 4;
  const int row = blockIdx.x, head = blockIdx.z, channel = head * p.channels + 2 * t;
  const int column_blocks = divide_up(p.width, kWarps * 16);
  const int left = (blockIdx.y % column_blocks * kWarps + warp) * 16;
  const int first = blockIdx.y / column_blocks * kBiasTiles * kTile;

  // The lane's queries, columns j, and pooled keys, columns v. Those beyond the edge compute the same as those at it.
  const T *queries[2], *grads[2], *keys = p.pooled_key + channel, *values = p.pooled_value + channel;
  const Statistics* statistics[2];
  int j[2], v[kBiasTiles];
  float bias[kBiasTiles][4], sums[kBiasTiles][4] = {};
#pragma unroll
  for (int n = 0; n < kBiasTiles; ++n) v[n] = clamp(first + n * kTile + g, p.pooled_width - 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    j[r] = left + g + r * kTile;
    const int valid_j = clamp(j[r], p.width - 1);
    queries[r] = offset_pointer(p.query + channel, valid_j, p.stride.query);
    grads[r] = offset_pointer(p.grad_output + channel, valid_j, p.grad_output_stride);
    statistics[r] = p.statistics_of(0, head, 0) + valid_j;
    optimisation_barrier(queries[r], grads[r], statistics[r]);
    const int size = p.width * p.pooled_keys.padded_width * static_cast<int>(sizeof(T));
    const T* const of_query = offset_pointer(p.pooled_bias, head * p.bias_rows + (kSums ? 0 : row), size) +
                              valid_j * p.pooled_keys.padded_width + 2 * t;
#pragma unroll
    for (int n = 0; n < kBiasTiles; ++n) {
      const T* const tile = of_query + clamp(first + n * kTile, p.pooled_keys.padded_width - kTile);
      float two[2] = {};
      if constexpr (kSums) {
        const int pair = first_pair + row;
        const int64_t* const rows = p.pooled_bias_rows + pair * p.summands;
        sum_rows(two, rows, p.bias_weights + pair * (p.summands - 1), p.summands, tile, size);
      } else {
        const Pair<T> loaded = load_pair(tile);
        two[0] = static_cast<float>(loaded.x), two[1] = static_cast<float>(loaded.y);
      }
      bias[n][2 * r] = two[0], bias[n][2 * r + 1] = two[1];
    }
  }
  int query_stride = p.stride.query, grad_stride = p.grad_output_stride, key_stride = p.stride.pooled_key;
  int value_stride = p.stride.pooled_value, row_of_statistics = p.row_of_statistics();
  optimisation_barrier(keys, values, query_stride, grad_stride, key_stride, value_stride, row_of_statistics);

  const Range range = kSums ? Range{first_pair + row, first_pair + row + 1} : ranges[row];
#pragma unroll 1
  for (int k = range.begin; k < range.end; ++k) {
    const unsigned pair = static_cast<unsigned>(kSums ? k : pairs[k]), i = pair / p.pooled_height,
                   u = pair - i * p.pooled_height;
#pragma unroll 1
    for (int image = 0; image < p.batch; ++image) {
      const int query_row = image * p.height + i, key_row = image * p.pooled_height + u;
      Pair<T> query[kGroups][2], grad[kGroups][2];
      float shift[2], minus_mean[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Pair<T> channels[kGroups];
        load_in_any_order(channels, offset_pointer(queries[r], query_row * p.width, query_stride), p.channels, t);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) query[c][r] = channels[c];
        load_in_any_order(channels, offset_pointer(grads[r], query_row * p.width, grad_stride), p.channels, t);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) grad[c][r] = channels[c];
        const int row_of_image = image * p.heads * p.height + i;
        const Statistics of_query = *offset_pointer(statistics[r], row_of_image, row_of_statistics);
        shift[r] = of_query.shift, minus_mean[r] = of_query.minus_mean;
      }
#pragma unroll
      for (int n = 0; n < kBiasTiles; ++n) {
        const int token = key_row * p.pooled_width + v[n];
        Pair<T> key[kGroups], value[kGroups];
        load_in_any_order(key, offset_pointer(keys, token, key_stride), p.channels, t);
        load_in_any_order(value, offset_pointer(values, token, value_stride), p.channels, t);
        float logits[4] = {bias[n][0], bias[n][1], bias[n][2], bias[n][3]};
        float grad_weights[4] = {minus_mean[0], minus_mean[0], minus_mean[1], minus_mean[1]};
        multiply_channels(logits, query, key);
        multiply_channels(grad_weights, grad, value);
#pragma unroll
        for (int m = 0; m < 4; ++m)
          sums[n][m] = fmaf(weight_of(logits[m], shift[m / 2]), grad_weights[m], sums[n][m]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kBiasTiles; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int column = first + n * kTile + 2 * t + k % 2;
      if (j[k / 2] < p.width && column < p.pooled_width)
        grad_bias[(static_cast<int64_t>(head * gridDim.x + row) * p.width + j[k / 2]) * p.pooled_width + column] =
            static_cast<T>(sums[n][k]);
    }
  }
}

// Adds the gradients of the sums of `number` pairs, (heads, number, columns), to those of the rows of the bias,
// (heads, R, columns): `summands` are the indices in (pairs, n) of each row, as from `pairs_by_row`. Blocks are
// (columns, R, heads).
template <typename T>
__global__ void __launch_bounds__(kThreads) summands_kernel(
    const T* grad_sums, int first_pair, int number, const int* summands, const Range* ranges, const float* weights,
    int n, int columns, float* grad_bias) {
  const int column = blockIdx.x * kThreads + threadIdx.x, row = blockIdx.y, head = blockIdx.z;
  if (column >= columns) return;
  float sum = 0;
  const Range range = ranges[row];
#pragma unroll 4
  for (int k = range.begin; k < range.end; ++k) {
    const int pair = summands[k] / n, place = summands[k] % n, index = pair - first_pair;
    if (index < 0 || index >= number) continue;
    float weight = place + 1 < n ? weights[pair * (n - 1) + place] : 1;
    for (int other = 0; place + 1 == n && other < n - 1; ++other) weight -= weights[pair * (n - 1) + other];
    const int64_t of_pair = static_cast<int64_t>(head) * number + index;
    sum = fmaf(weight, static_cast<float>(grad_sums[of_pair * columns + column]), sum);
  }
  grad_bias[(static_cast<int64_t>(head) * gridDim.y + row) * columns + column] += sum;
}

// The pairs, and elements, of the gradients that exist at a time where biases are sums of rows.
constexpr int64_t kPairsOfSums = 1024, kGradientsOfSums = int64_t(1) << 25;

// The blocks of pooled_kernel that fill a large GPU: the same on every GPU, for the order of the sums.
constexpr int64_t kPooledBlocks = 512;

}  // namespace

std::tuple<Tensor, Tensor> pairs_by_row(const Tensor& rows, int64_t number) {
  const auto integers = rows.options().dtype(kInt);
  Tensor pairs = empty({rows.numel()}, integers), ranges = empty({number, 2}, integers);
  launch(
      pairs_kernel, dim3(divide_up(number, kWarps)), kThreads, 0, rows, static_cast<int>(pairs.numel()),
      static_cast<int>(number), pairs, ranges);
  return {pairs, ranges};
}

Gradients aggregated_attention_backward_cuda(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding) {
  const DeviceGuard guard(inputs.query.device());
  Inputs grad = aggregated_attention_backward_sums(grad_output, inputs, output, logsumexp, rounding, Tensor());
  const auto dtype = inputs.query.scalar_type();
  grad.window_bias = grad.window_bias.to(dtype);
  grad.pooled_key = grad.pooled_key.sum({0}).to(dtype);
  grad.pooled_value = grad.pooled_value.sum({0}).to(dtype);
  return to_gradients(grad);
}

Inputs aggregated_attention_backward_sums(
    const Tensor& any_grad_output, const Inputs& any_inputs, const Tensor& any_output, const Tensor& any_logsumexp,
    const Tensor& any_rounding, const Tensor& bias_weights) {
  const DeviceGuard guard(any_inputs.query.device());
  const Inputs inputs = for_kernels(any_inputs);
  const Tensor grad_output = dense(StridedTokens(any_grad_output)), output = dense(any_output);
  const Tensor logsumexp = dense(any_logsumexp), rounding = dense(any_rounding);
  const Tensor bias_of_keys = dense(in_whole_runs(any_inputs.pooled_bias.permute({0, 1, 3, 2})));
  const Sizes<int64_t> s(inputs);
  Inputs grad;
  grad.query = empty_like(inputs.query), grad.key = empty_like(inputs.key), grad.value = empty_like(inputs.value);
  grad.pooled_bias = empty_like(any_inputs.pooled_bias), grad.token_weights = empty_like(inputs.token_weights);
  const auto floats = logsumexp.options();
  const Tensor statistics = empty({s.batch, s.heads, s.height, round_up(s.width, kTile), 2}, floats);

  const auto sorted = pairs_by_row(inputs.pooled_bias_rows, s.bias_rows);
  const Tensor &pairs = std::get<0>(sorted), &ranges = std::get<1>(sorted);
  for_float_dtypes(inputs.query, [&](auto zero) {
    using T = decltype(zero);
    const BackwardArguments<T> p{
        Arguments<T>(inputs, bias_weights),
        DataOf{grad_output},
        DataOf{output},
        DataOf{sizeof(T) == 2 ? rounding : Tensor()},
        Arguments<T>::stride_of(grad_output),
        DataOf{logsumexp},
        DataOf{bias_of_keys},
        DataOf{statistics},
        pointers_to<MutablePointers<T>>(grad)};
    for_sizes_with_bias(p.channels, p.window, p.summands > 1, [&](auto groups, auto window_size, auto sums) {
      constexpr int kGroups = decltype(groups)::value, kWindow = decltype(window_size)::value;
      constexpr bool kSums = decltype(sums)::value;
      constexpr int staged = Stage<kGroups, T>::kBytes;

      const dim3 over_image = blocks_over_image(p);
      const int window = 2 * kWarps * kWarpQueries * p.offsets * static_cast<int>(sizeof(float));
      const Tensor window_bias_sums = empty({s.batch, over_image.x, s.heads, s.offsets}, floats);
      launch(
          query_kernel<kGroups, kWindow, kSums, T>, over_image, kThreads, std::max(window, staged), p,
          window_bias_sums);
      grad.window_bias = window_bias_sums.sum({0, 1});
      launch(window_kernel<kGroups, kWindow, T>, over_image, kThreads, 0, p);

      const int64_t key_blocks = divide_up(p.pooled_keys.runs, 2 * kWarps);
      // There is at least one round, which writes zeros for an image without tokens.
      const int64_t rounds = std::max(divide_up(p.queries.runs, kTiles<T>), 1);
      const int64_t blocks = key_blocks * s.heads * s.batch;
      const int64_t wanted = std::clamp(kPooledBlocks / std::max<int64_t>(blocks, 1), int64_t(1), rounds);
      const int64_t rounds_in_split = divide_up(rounds, wanted);
      const int64_t splits = divide_up(rounds, rounds_in_split);
      grad.pooled_key = empty({splits, s.batch, s.pooled_height, s.pooled_width, s.heads, s.channels}, floats);
      grad.pooled_value = empty_like(grad.pooled_key);
      launch(
          pooled_kernel<kGroups, kSums, T>, dim3(key_blocks, s.heads, s.batch * splits), kThreads, staged, p,
          static_cast<int>(rounds_in_split), grad.pooled_key, grad.pooled_value);

      const int64_t column_blocks = divide_up(s.width, 16 * kWarps);
      const int64_t pooled_blocks = divide_up(s.pooled_width, kBiasTiles * kTile);
      const auto grad_biases = [&](int64_t rows, int64_t first_pair, const Tensor& target) {
        launch(
            pooled_bias_kernel<kGroups, kSums, T>, dim3(rows, column_blocks * pooled_blocks, s.heads), kThreads, 0, p,
            pairs, ranges, static_cast<int>(first_pair), target);
      };
      if (!kSums) return grad_biases(s.bias_rows, 0, grad.pooled_bias);
      // The gradients of the sums of some pairs after the other, which are added to those of the rows.
      const int64_t columns = s.width * s.pooled_width, all_pairs = s.height * s.pooled_height;
      const int64_t of_elements = kGradientsOfSums / std::max<int64_t>(s.heads * columns, 1);
      const int64_t at_once = std::clamp(of_elements, int64_t(1), kPairsOfSums);
      const Tensor grad_rows = zeros(grad.pooled_bias.sizes(), floats);
      for (int64_t first = 0; first < all_pairs; first += at_once) {
        const int64_t number = std::min(at_once, all_pairs - first);
        const Tensor grad_sums = empty({s.heads, number, columns}, grad.pooled_bias.options());
        grad_biases(number, first, grad_sums);
        launch(
            summands_kernel<T>, dim3(divide_up(columns, kThreads), s.bias_rows, s.heads), kThreads, 0, grad_sums,
            static_cast<int>(first), static_cast<int>(number), pairs, ranges, bias_weights, p.summands,
            static_cast<int>(columns), grad_rows);
      }
      grad.pooled_bias = grad_rows.to(grad.pooled_bias.scalar_type());
    });
  });
  return grad;
}

}  // namespace bioattn_mm
