// Aggregated attention on CUDA, backward. Attention weights are not read from memory: every kernel computes those that
// it needs again from the inputs and the logsumexp. There are no atomic additions: each sum is added up by one thread or
// warp, always in the same order.
//
//   query_kernel         gradients of the queries and token weights; sums for the window bias; `mean`
//   window_kernel        gradients of the window keys and values, gathered from the queries in whose windows they are
//   pooled_kernel        gradients of the pooled keys and values, one partial sum for each group of queries
//   pooled_bias_kernel   gradient of the position bias, from the pairs of query and pooled row that share a row of it
//
// The gradient of a logit is weight * (gradient of the weight - mean), `mean` of these gradients under the weights.

#include "cuda/aggregated_attention.cuh"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>

#include <algorithm>

namespace bioattn_mm {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kLanes;
constexpr int kTiles = 4, kStaged = kTiles * kTile;  // rows in shared memory at a time

// What the backward pass reads and writes.
template <typename T>
struct BackwardArguments : Arguments<T> {
  const T *grad_output, *output, *rounding;  // `rounding` is null for float32
  const float* logsumexp;
  float* mean;  // (B, H, W, heads), written by query_kernel
  MutablePointers<T> grad;
};

// Turns the logits of a tile into their gradients, with the gradients of the weights and the logsumexp and mean of each
// of the lane's two queries.
__device__ __forceinline__ void logit_gradients(
    float (&logits)[4], const float (&grad_weights)[4], const float (&logsumexp)[2], const float (&mean)[2]) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    logits[k] = exponential(logits[k] - logsumexp[k / 2]) * (grad_weights[k] - mean[k / 2]);
}

template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) query_kernel(BackwardArguments<T> p, float* window_bias_sums) {
  char* const shared_memory = block_memory();
  const Place place(p, kWarps);
  const int g = place.g, t = place.t;
  const int64_t* token = place.token;

  Pair<T> query[kGroups][2], grad[kGroups][2];
  load_rows(query, p.query, place.token, p.channels, t);
  load_rows(grad, p.grad_output, place.token, p.channels, t);

  // Window part: logits and gradients of the weights of the block's queries.
  float* const all_logits = reinterpret_cast<float*>(shared_memory);
  float* const all_grads = all_logits + kWarps * kWarpQueries * p.offsets;
  float *own_logits[2], *own_grads[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int place_in_block = (place.warp * kWarpQueries + r * kWarpColumns + g) * p.offsets;
    own_logits[r] = all_logits + place_in_block;
    own_grads[r] = all_grads + place_in_block;
  }
  const T* const window_bias = p.window_bias + place.head * p.offsets;
  for_windows(p, place, [&](int i, int j, bool inside, const int (&offsets)[2]) {
    float logits[2] = {0, 0}, grads[2] = {0, 0};
    if (inside) {
      const int64_t other = p.token(place.image, place.head, i, j);
      Pair<T> key[kGroups], value[kGroups];
      load_channels(key, p.key, other, p.channels, t);
      load_channels(value, p.value, other, p.channels, t);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          logits[r] += dot(query[c][r], key[c]);
          grads[r] += dot(grad[c][r], value[c]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float logit = quad_sum(logits[r]), grad_weight = quad_sum(grads[r]);
      if (t == r && offsets[r] >= 0) {
        own_logits[r][offsets[r]] = inside ? logit + static_cast<float>(window_bias[offsets[r]]) : -INFINITY;
        own_grads[r][offsets[r]] = grad_weight;
      }
    }
  });
  __syncwarp();
  float own_logsumexp[2], own_mean[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    own_logsumexp[r] = p.logsumexp[token[r]];
    // grad_output . output is the mean of the gradients, plus the part of the token weights, which is subtracted.
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      if (kTile * c >= p.channels) continue;
      const int64_t channel = token[r] * p.channels + kTile * c + 2 * t;
      sum += dot(grad[c][r], load_pair(p.output + channel));
      if constexpr (sizeof(T) == 2) sum += dot(grad[c][r], load_pair(p.rounding + channel));
    }
    for (int o = t; o < p.offsets; o += 4)
      sum -= static_cast<float>(p.token_weights[token[r] * p.offsets + o]) * own_grads[r][o];
    own_mean[r] = quad_sum(sum);
    if (place.inside[r] && t == 0) p.mean[token[r]] = own_mean[r];
    for (int o = t; o < p.offsets; o += 4) {
      if (place.inside[r]) p.grad.token_weights[token[r] * p.offsets + o] = static_cast<T>(own_grads[r][o]);
      own_logits[r][o] =
          place.inside[r] ? exponential(own_logits[r][o] - own_logsumexp[r]) * (own_grads[r][o] - own_mean[r]) : 0;
    }
  }
  __syncthreads();
  for (int o = threadIdx.x; o < p.offsets; o += kThreads) {
    float sum = 0;
    for (int q = 0; q < kWarps * kWarpQueries; ++q) sum += all_logits[q * p.offsets + o];
    const int64_t block = static_cast<int64_t>(place.image) * gridDim.x + blockIdx.x;
    window_bias_sums[(block * p.heads + place.head) * p.offsets + o] = sum;
  }
  float sums[kGroups][4] = {};
  for_windows(p, place, [&](int i, int j, bool inside, const int (&offsets)[2]) {
    if (!inside) return;
    Pair<T> key[kGroups];
    load_channels(key, p.key, p.token(place.image, place.head, i, j), p.channels, t);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float grad_logit = offsets[r] >= 0 ? own_logits[r][offsets[r]] : 0;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        sums[c][2 * r] += grad_logit * static_cast<float>(key[c].x);
        sums[c][2 * r + 1] += grad_logit * static_cast<float>(key[c].y);
      }
    }
  });

  // Pooled part.
  const Rows<kStaged, kGroups, T> keys{reinterpret_cast<T*>(shared_memory)};
  const TransposedRows<kStaged, kGroups, T> transposed_keys{keys.data + keys.kSize};
  const Rows<kStaged, kGroups, T> values{transposed_keys.data + transposed_keys.kSize};
  PooledBias<T> pooled_bias;
  for (int first = 0; first < p.tiles(); first += kTiles) {
    const auto token = [&](int row) {
      return PooledTile(p, first + row / kTile).token(p, place.image, place.head, row % kTile);
    };
    __syncthreads();
    stage<kStaged, kGroups, kThreads>(p.pooled_key, p.channels, token, [&](int row, int channel, const Pair<T>& pair) {
      keys.store(row, channel, pair);
      transposed_keys.store(row, channel, pair);
    });
    stage<kStaged, kGroups, kThreads>(p.pooled_value, p.channels, token, [&](int row, int channel, const Pair<T>& pair) {
      values.store(row, channel, pair);
    });
    __syncthreads();
    Pair<T> grad_logits[kTiles][2];
    PooledTile tile(p, first);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float logits[4] = {}, grad_weights[4] = {};
      multiply_add_steps<kGroups>(logits, query, [&](int c) { return keys.factor(n * kTile, c, g, t); });
      multiply_add_steps<kGroups>(grad_weights, grad, [&](int c) { return values.factor(n * kTile, c, g, t); });
      pooled_bias.add(logits, p, place, tile, n == 0);
      tile.next(p);
      logit_gradients(logits, grad_weights, own_logsumexp, own_mean);
      grad_logits[n][0] = make_pair<T>(logits[0], logits[1]);
      grad_logits[n][1] = make_pair<T>(logits[2], logits[3]);
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      add_product<kTiles>(sums[c], grad_logits, [&](int n) { return transposed_keys.factor(n * kTile, c, g, t); });
  }
  store_rows(p.grad.query, sums, place.token, place.inside, p.channels, t);
}

// Here the lane's two tokens are keys, and the tokens of their windows are the queries in whose windows they are.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) window_kernel(BackwardArguments<T> p) {
  const Place place(p, kWarps);
  const int t = place.t;
  Pair<T> key[kGroups][2], value[kGroups][2];
  load_rows(key, p.key, place.token, p.channels, t);
  load_rows(value, p.value, place.token, p.channels, t);
  const T* const window_bias = p.window_bias + place.head * p.offsets;

  float key_sums[kGroups][4] = {}, value_sums[kGroups][4] = {};
  for_windows(p, place, [&](int i, int j, bool inside, const int (&offsets)[2]) {
    const int64_t other = inside ? p.token(place.image, place.head, i, j) : 0;
    Pair<T> query[kGroups], grad[kGroups];
    float logits[2] = {0, 0}, grads[2] = {0, 0};
    if (inside) {
      load_channels(query, p.query, other, p.channels, t);
      load_channels(grad, p.grad_output, other, p.channels, t);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          logits[r] += dot(query[c], key[c][r]);
          grads[r] += dot(grad[c], value[c][r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float logit = quad_sum(logits[r]), grad_weight = quad_sum(grads[r]);
      if (!inside || offsets[r] < 0) continue;
      // In the window of the query, this key has the opposite offset.
      const int offset = p.offsets - 1 - offsets[r];
      const float weight = exponential(logit + static_cast<float>(window_bias[offset]) - p.logsumexp[other]);
      const float grad_logit = weight * (grad_weight - p.mean[other]);
      const float factor = weight + static_cast<float>(p.token_weights[other * p.offsets + offset]);
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        key_sums[c][2 * r] += grad_logit * static_cast<float>(query[c].x);
        key_sums[c][2 * r + 1] += grad_logit * static_cast<float>(query[c].y);
        value_sums[c][2 * r] += factor * static_cast<float>(grad[c].x);
        value_sums[c][2 * r + 1] += factor * static_cast<float>(grad[c].y);
      }
    }
  });
  store_rows(p.grad.key, key_sums, place.token, place.inside, p.channels, t);
  store_rows(p.grad.value, value_sums, place.token, place.inside, p.channels, t);
}

// A tile of queries: eight neighbours in a row of the image. Tiles are numbered within an image.
struct QueryTile {
  template <typename T>
  __device__ QueryTile(const Arguments<T>& p, int tile) {
    const int tiles_in_row = (p.width + kTile - 1) / kTile;
    i = tile / tiles_in_row, j = tile % tiles_in_row * kTile;
  }
  template <typename T>
  __device__ int64_t token(const Arguments<T>& p, int image, int head, int k) const {
    return p.inside(i, j + k) ? p.token(image, head, i, j + k) : -1;
  }

  int i, j;
};

// A warp has sixteen pooled keys, two tiles. The grid of blocks is (groups of keys, heads, batch * splits): each split
// sums over its own part of the queries, chunks_in_split chunks of kTiles tiles.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) pooled_kernel(
    BackwardArguments<T> p, int chunks_in_split, float* pooled_key_sums, float* pooled_value_sums) {
  char* const shared_memory = block_memory();
  const Rows<kStaged, kGroups, T> queries{reinterpret_cast<T*>(shared_memory)}, grads{queries.data + queries.kSize};
  const TransposedRows<kStaged, kGroups, T> transposed_queries{grads.data + grads.kSize};
  const TransposedRows<kStaged, kGroups, T> transposed_grads{transposed_queries.data + transposed_queries.kSize};
  const int warp = threadIdx.x / kLanes, g = threadIdx.x % kLanes / 4, t = threadIdx.x % 4;
  const int head = blockIdx.y, image = blockIdx.z % p.batch, split = blockIdx.z / p.batch;

  Pair<T> key[kGroups][2], value[kGroups][2];
  int u[2], v[2];
  int64_t pooled_token[2];
  bool exists[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PooledTile tile(p, (blockIdx.x * kWarps + warp) * 2 + r);
    exists[r] = tile.token(p, image, head, g) >= 0;
    u[r] = clamp(tile.u, p.pooled_height - 1), v[r] = clamp(tile.v + g, p.pooled_width - 1);
    pooled_token[r] = p.pooled_token(image, head, u[r], v[r]);
  }
  load_rows(key, p.pooled_key, pooled_token, p.channels, t);
  load_rows(value, p.pooled_value, pooled_token, p.channels, t);

  const int query_tiles = p.height * ((p.width + kTile - 1) / kTile);
  const int begin = split * chunks_in_split * kTiles, end = clamp(begin + chunks_in_split * kTiles, query_tiles);
  float key_sums[kGroups][4] = {}, value_sums[kGroups][4] = {};
  for (int first = begin; first < end; first += kTiles) {
    const auto token = [&](int row) { return QueryTile(p, first + row / kTile).token(p, image, head, row % kTile); };
    __syncthreads();
    stage<kStaged, kGroups, kThreads>(p.query, p.channels, token, [&](int row, int channel, const Pair<T>& pair) {
      queries.store(row, channel, pair);
      transposed_queries.store(row, channel, pair);
    });
    stage<kStaged, kGroups, kThreads>(p.grad_output, p.channels, token, [&](int row, int channel, const Pair<T>& pair) {
      grads.store(row, channel, pair);
      transposed_grads.store(row, channel, pair);
    });
    __syncthreads();
    Pair<T> weights[kTiles][2], grad_logits[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float logits[4] = {}, grad_weights[4] = {};
      multiply_add_steps<kGroups>(logits, key, [&](int c) { return queries.factor(n * kTile, c, g, t); });
      multiply_add_steps<kGroups>(grad_weights, value, [&](int c) { return grads.factor(n * kTile, c, g, t); });
      const QueryTile tile(p, first + n);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int r = k / 2;
        const int64_t query = tile.token(p, image, head, 2 * t + k % 2);
        float weight = 0, mean_of_query = 0;
        if (query >= 0 && exists[r]) {
          const int row = p.pooled_bias_rows[tile.i * p.pooled_height + u[r]];
          const T bias = p.pooled_bias[p.bias(head, row, tile.j + 2 * t + k % 2) + v[r]];
          weight = exponential(logits[k] + static_cast<float>(bias) - p.logsumexp[query]);
          mean_of_query = p.mean[query];
        }
        logits[k] = weight;
        grad_weights[k] = weight * (grad_weights[k] - mean_of_query);
      }
      weights[n][0] = make_pair<T>(logits[0], logits[1]), weights[n][1] = make_pair<T>(logits[2], logits[3]);
      grad_logits[n][0] = make_pair<T>(grad_weights[0], grad_weights[1]);
      grad_logits[n][1] = make_pair<T>(grad_weights[2], grad_weights[3]);
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      add_product<kTiles>(
          value_sums[c], weights, [&](int n) { return transposed_grads.factor(n * kTile, c, g, t); });
      add_product<kTiles>(
          key_sums[c], grad_logits, [&](int n) { return transposed_queries.factor(n * kTile, c, g, t); });
    }
  }
  const int64_t sums_of_split = static_cast<int64_t>(p.batch) * p.pooled_height * p.pooled_width * p.heads * p.channels;
  store_rows(pooled_key_sums + split * sums_of_split, key_sums, pooled_token, exists, p.channels, t);
  store_rows(pooled_value_sums + split * sums_of_split, value_sums, pooled_token, exists, p.channels, t);
}

// A block has one row of the bias, four groups of sixteen columns of queries and four tiles of pooled columns. `pairs`
// has the pairs of a query row and a pooled row in the order of their rows of the bias: the block sums over those from
// starts[row] to starts[row + 1].
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads) pooled_bias_kernel(
    BackwardArguments<T> p, const int64_t* pairs, const int64_t* starts) {
  const int warp = threadIdx.x / kLanes, g = threadIdx.x % kLanes / 4, t = threadIdx.x % 4;
  const int row = blockIdx.x, head = blockIdx.z;
  const int column_blocks = (p.width + kWarps * 16 - 1) / (kWarps * 16);
  const int left = (blockIdx.y % column_blocks * kWarps + warp) * 16, first = blockIdx.y / column_blocks * kStaged;
  const int j[2] = {left + g, left + g + 8};

  float bias[kTiles][4], sums[kTiles][4] = {};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int v = first + n * kTile + 2 * t + k % 2;
      const bool exists = j[k / 2] < p.width && v < p.pooled_width;
      bias[n][k] = exists ? static_cast<float>(p.pooled_bias[p.bias(head, row, j[k / 2]) + v]) : -INFINITY;
    }
  }
  for (int64_t pair = starts[row]; pair < starts[row + 1]; ++pair) {
    const int i = pairs[pair] / p.pooled_height, u = pairs[pair] % p.pooled_height;
    for (int image = 0; image < p.batch; ++image) {
      int64_t token[2];
      float own_logsumexp[2], own_mean[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        token[r] = p.token(image, head, i, clamp(j[r], p.width - 1));
        own_logsumexp[r] = p.logsumexp[token[r]], own_mean[r] = p.mean[token[r]];
      }
      Pair<T> query[kGroups][2], grad[kGroups][2];
      load_rows(query, p.query, token, p.channels, t);
      load_rows(grad, p.grad_output, token, p.channels, t);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (first + n * kTile >= p.pooled_width) break;
        const int64_t pooled = p.pooled_token(image, head, u, clamp(first + n * kTile + g, p.pooled_width - 1));
        Pair<T> key[kGroups], value[kGroups];
        load_channels(key, p.pooled_key, pooled, p.channels, t);
        load_channels(value, p.pooled_value, pooled, p.channels, t);
        float logits[4] = {bias[n][0], bias[n][1], bias[n][2], bias[n][3]}, grad_weights[4] = {};
        multiply_add_steps<kGroups>(logits, query, [&](int c) { return key[c]; });
        multiply_add_steps<kGroups>(grad_weights, grad, [&](int c) { return value[c]; });
        logit_gradients(logits, grad_weights, own_logsumexp, own_mean);
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[n][k] += logits[k];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int v = first + n * kTile + 2 * t + k % 2;
      if (j[k / 2] < p.width && v < p.pooled_width)
        p.grad.pooled_bias[p.bias(head, row, j[k / 2]) + v] = static_cast<T>(sums[n][k]);
    }
  }
}

// Blocks of pooled_kernel that fill a large GPU, whatever the number of pooled keys. The number is the same on every
// GPU, and so is the order of the sums.
constexpr int64_t kPooledBlocks = 1024;

}  // namespace

Inputs aggregated_attention_backward_cuda(
    const Tensor& any_grad_output, const Inputs& any_inputs, const Tensor& any_output, const Tensor& any_logsumexp,
    const Tensor& any_rounding) {
  const DeviceGuard guard(any_inputs.query.device());
  const Inputs inputs = any_inputs.map(for_kernels);
  const Tensor grad_output = for_kernels(any_grad_output), output = for_kernels(any_output);
  const Tensor logsumexp = for_kernels(any_logsumexp), rounding = for_kernels(any_rounding);
  const Sizes<int64_t> s(inputs);
  Inputs grad;
  grad.query = at::empty_like(inputs.query);
  grad.key = at::empty_like(inputs.key);
  grad.value = at::empty_like(inputs.value);
  grad.pooled_bias = at::empty_like(inputs.pooled_bias);
  grad.token_weights = at::empty_like(inputs.token_weights);
  const Tensor mean = at::empty_like(logsumexp);

  // The pairs (query row, pooled row) in the order of their rows of the bias.
  Tensor sorted_rows, pairs;
  std::tie(sorted_rows, pairs) = at::sort(inputs.pooled_bias_rows.flatten(), std::optional<bool>(true), /*dim=*/0);
  const Tensor starts = at::searchsorted(sorted_rows, at::arange(s.bias_rows + 1, sorted_rows.options()));

  for_dtype(inputs.query.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const BackwardArguments<T> p{
        Arguments<T>(inputs), grad_output.const_data_ptr<T>(), output.const_data_ptr<T>(),
        sizeof(T) == 2 ? rounding.const_data_ptr<T>() : nullptr, logsumexp.const_data_ptr<float>(),
        mean.mutable_data_ptr<float>(), pointers_to<MutablePointers<T>>(grad)};
    for_channels(p.channels, [&](auto groups) {
      constexpr int kGroups = decltype(groups)::value;
      constexpr size_t rows = Rows<kStaged, kGroups, T>::kSize * sizeof(T);
      constexpr size_t transposed_rows = TransposedRows<kStaged, kGroups, T>::kSize * sizeof(T);
      const auto sum = [&](const Tensor& sums, at::IntArrayRef axes) {
        return sums.sum(axes).to(output.scalar_type());
      };
      const auto floats = logsumexp.options();

      const dim3 over_image = blocks_over_image(p, kWarps);
      const size_t window = 2 * kWarps * kWarpQueries * p.offsets * sizeof(float);
      const Tensor window_bias_sums = at::empty({s.batch, over_image.x, s.heads, s.offsets}, floats);
      launch(
          query_kernel<kGroups, T>, over_image, kThreads, std::max(window, 2 * rows + transposed_rows), p,
          window_bias_sums.mutable_data_ptr<float>());
      grad.window_bias = sum(window_bias_sums, {0, 1});
      launch(window_kernel<kGroups, T>, over_image, kThreads, 0, p);

      const int64_t key_blocks = (p.tiles() + 2 * kWarps - 1) / (2 * kWarps);
      // At least one, so that the sums over an image without tokens are written: zeros.
      const int64_t query_tiles = s.height * ((s.width + kTile - 1) / kTile);
      const int64_t chunks = std::max<int64_t>((query_tiles + kTiles - 1) / kTiles, 1);
      const int64_t blocks = key_blocks * s.heads * s.batch;
      const int64_t wanted = std::clamp(kPooledBlocks / std::max<int64_t>(blocks, 1), int64_t(1), chunks);
      const int64_t chunks_in_split = (chunks + wanted - 1) / wanted;
      const int64_t splits = (chunks + chunks_in_split - 1) / chunks_in_split;
      const Tensor pooled_key_sums =
          at::empty({splits, s.batch, s.pooled_height, s.pooled_width, s.heads, s.channels}, floats);
      const Tensor pooled_value_sums = at::empty_like(pooled_key_sums);
      launch(
          pooled_kernel<kGroups, T>, dim3(key_blocks, s.heads, s.batch * splits), kThreads,
          2 * rows + 2 * transposed_rows, p, static_cast<int>(chunks_in_split),
          pooled_key_sums.mutable_data_ptr<float>(), pooled_value_sums.mutable_data_ptr<float>());
      grad.pooled_key = sum(pooled_key_sums, {0});
      grad.pooled_value = sum(pooled_value_sums, {0});

      const int64_t column_blocks = (s.width + 16 * kWarps - 1) / (16 * kWarps);
      const int64_t pooled_blocks = (s.pooled_width + kStaged - 1) / kStaged;
      launch(
          pooled_bias_kernel<kGroups, T>, dim3(s.bias_rows, column_blocks * pooled_blocks, s.heads), kThreads, 0, p,
          pairs.const_data_ptr<int64_t>(), starts.const_data_ptr<int64_t>());
    });
  });
  return grad;
}

}  // namespace bioattn_mm
