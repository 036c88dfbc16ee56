// Aggregated attention on CUDA, forward: one pass over the pooled keys with an online softmax, then the window.

#include "cuda/aggregated_attention.cuh"

namespace bioattn_mm {
namespace {

// Ends the kernel with an error if a row of the position bias that the warp's queries need does not exist.
template <bool kSums, typename T>
__device__ __forceinline__ void check_bias_rows(const Arguments<T>& p, const Place& place) {
  const int indices = p.pooled_height * summands_of<kSums>(p);
  bool exist = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll 1
    for (int u = threadIdx.x % kWarpSize; u < indices; u += kWarpSize) {
      const int64_t row = p.pooled_bias_rows[place.row[r] * indices + u];
      exist = exist && 0 <= row && row < p.bias_rows;
    }
  }
  BIOATTN_KERNEL_ASSERT(__all_sync(kFullWarp, exist), "pooled_bias_rows has a row that pooled_bias has not");
}

// The softmax of two queries over the keys so far: `total` sums 2^(kLog2e * logit - shift), `shift` is the maximum.
struct OnlineSoftmax {
  // Turns the logits of kCount tiles into weights, and scales the sums of values so far to the new shift.
  template <int kGroups, typename T, int kCount>
  __device__ void update(Pair<T> (&weights)[kCount][2], const float (&logits)[kCount][4], float (&sums)[kGroups][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = logits[0][2 * r];
#pragma unroll
      for (int n = 0; n < kCount; ++n) highest = fmaxf(highest, fmaxf(logits[n][2 * r], logits[n][2 * r + 1]));
      const float new_shift = fmaxf(shift[r], kLog2e * quad_max(highest));
      // Where every logit so far is -inf, there is nothing to subtract.
      const float finite_shift = new_shift == -INFINITY ? 0 : new_shift;
      const float scale = power_of_two(shift[r] - finite_shift);
      shift[r] = new_shift;
      total[r] *= scale;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) sums[c][2 * r] *= scale, sums[c][2 * r + 1] *= scale;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const float x = power_of_two(fmaf(logits[n][2 * r], kLog2e, -finite_shift));
        const float y = power_of_two(fmaf(logits[n][2 * r + 1], kLog2e, -finite_shift));
        total[r] += x + y;
        weights[n][r] = make_pair<T>(x, y);
      }
    }
  }

  float shift[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

// Adds the pooled keys to the softmax, and their weighted values to `sums`.
template <bool kSums, int kGroups, typename T>
__device__ __forceinline__ void attend_to_pooled_keys(
    OnlineSoftmax& softmax, float (&sums)[kGroups][4], const Arguments<T>& p, const Place& place,
    const Pair<T> (&query)[kGroups][2], char* shared_memory) {
  const Grid& keys = p.pooled_keys;
  auto stage = stage_of_pooled_tokens<kGroups>(shared_memory, p, place);
  const RunBias<kSums, T> bias = bias_of_queries<kSums>(p, place);
  Run run = Run().behind(keys, place.t);
  stage.copy(keys, 0, p.channels);
#pragma unroll 1
  for (int first = 0, buffer = 0; first < keys.runs; first += kTiles<T>, buffer ^= 1) {
    float logits[kTiles<T>][4];
#pragma unroll
    for (int n = 0; n < kTiles<T>; n += 4) {
      bias.start(logits + n, keys, run);
      run.advance(keys);
    }
    wait_for_copies();
    __syncthreads();  // every thread has copied these keys, and none still reads those before
    if (first + kTiles<T> < keys.runs) stage.copy(keys, buffer ^ 1, p.channels);
#pragma unroll
    for (int n = 0; n < kTiles<T>; n += 4) multiply_by_rows(logits + n, query, stage.first(buffer), kTile * n);
    Pair<T> weights[kTiles<T>][2];
    softmax.update(weights, logits, sums);
#pragma unroll
    for (int n = 0; n < kTiles<T>; n += 4) add_product_of_rows(sums, weights + n, stage.second(buffer), kTile * n);
  }
}

template <int kGroups, int kWindow, bool kSums, typename T>
__global__ void __launch_bounds__(kThreads, kGroups <= 3 ? 4 : 2)
    forward_kernel(Arguments<T> p, T* output, float* logsumexp, T* rounding) {
  char* const shared_memory = block_memory();
  const Place place(p);
  const int g = place.g, t = place.t;
  check_bias_rows<kSums>(p, place);

  Pair<T> query[kGroups][2];
  load_rows(query, p.query + place.channel, place.token, p.stride.query, p.channels);
  float sums[kGroups][4] = {};
  OnlineSoftmax softmax;
  if (p.pooled_keys.runs > 0) attend_to_pooled_keys<kSums>(softmax, sums, p, place, query, shared_memory);
  __syncthreads();

  // The window part has logits, then weights, of the warp's queries; logits are -inf outside of the image.
  const int window = window_of<kWindow>(p), offsets = window * window;
  float* const window_weights = reinterpret_cast<float*>(shared_memory) + place.warp * kWarpQueries * offsets;
#pragma unroll kWindow ? 8 : 1
  for (int k = threadIdx.x % kWarpSize; k < kWarpQueries * offsets; k += kWarpSize) window_weights[k] = -INFINITY;
  __syncwarp();
  const T *keys = p.key + place.channel, *values = p.value + place.channel;
  int key_stride = p.stride.key, value_stride = p.stride.value;
  optimisation_barrier(keys, values, key_stride, value_stride);
  // Lane t of a quad has the logits of the query in row t % 2.
  float* const lane_logits = window_weights + (g + t % 2 * kTile) * offsets - t % 2 * window;
  for_windows<kWindow>(p, place, [&](int dy, int dx, bool inside, int token) {
    Pair<T> key[kGroups];
    load_channels(key, offset_pointer(keys, token, key_stride), p.channels);
    float products[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) products[r] = add_dot(products[r], query[c][r], key[c]);
    }
    const float logit = quad_sums(products, t);
    int stores = inside && t < 2 && (t == 0 ? dy < window : dy > 0);
    optimisation_barrier(stores);
    if (stores) lane_logits[dy * window + dx] = logit;
  });
  __syncwarp();
  float* const own_weights[2] = {window_weights + g * offsets, window_weights + (g + kTile) * offsets};
  const T* const window_bias = p.window_bias + place.head * offsets;
  float shift[2] = {softmax.shift[0], softmax.shift[1]}, total[2] = {0, 0}, inverse[2];
  for_offsets<kWindow>(p, t, [&](int o) {
    const float bias = static_cast<float>(window_bias[o]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own_weights[r][o] = kLog2e * (own_weights[r][o] + bias);
      shift[r] = fmaxf(shift[r], own_weights[r][o]);
    }
  });
  shift[0] = quad_max(shift[0]), shift[1] = quad_max(shift[1]);
  for_offsets<kWindow>(p, t, [&](int o) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own_weights[r][o] = power_of_two(own_weights[r][o] - shift[r]);
      total[r] += own_weights[r][o];
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float pooled_scale = power_of_two(softmax.shift[r] - shift[r]);
    total[r] = quad_sum(softmax.total[r] * pooled_scale + total[r]);
    inverse[r] = reciprocal(total[r]);
    const float factor = pooled_scale * inverse[r];
#pragma unroll
    for (int c = 0; c < kGroups; ++c) sums[c][2 * r] *= factor, sums[c][2 * r + 1] *= factor;
    if (place.inside[r] && t == 0)
      logsumexp[static_cast<int64_t>(place.token[r]) * p.heads + place.head] = shift[r] / kLog2e + logf(total[r]);
  }
  const T* const token_weights = p.token_weights + place.head * offsets;
  const int token_stride = p.heads * offsets * static_cast<int>(sizeof(T));
  const T* const own_token_weights[2] = {
      offset_pointer(token_weights, place.token[0], token_stride),
      offset_pointer(token_weights, place.token[1], token_stride)};
  for_offsets<kWindow>(p, t, [&](int o) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      own_weights[r][o] = own_weights[r][o] * inverse[r] + static_cast<float>(own_token_weights[r][o]);
  });
  __syncwarp();
  add_windows<kWindow>(sums, p, place, values, value_stride, own_weights);
  const int stride = p.heads * p.channels * static_cast<int>(sizeof(T));
  store_rows(output + place.channel, sums, place.token, place.inside, stride, p.channels);
  if (rounding != nullptr) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[c][k] -= static_cast<float>(static_cast<T>(sums[c][k]));
    }
    store_rows(rounding + place.channel, sums, place.token, place.inside, stride, p.channels);
  }
}

}  // namespace

RoundedForward aggregated_attention_forward_cuda(const Inputs& inputs, bool for_backward) {
  return aggregated_attention_of_sums(inputs, for_backward, Tensor());
}

RoundedForward aggregated_attention_of_sums(const Inputs& any_inputs, bool for_backward, const Tensor& bias_weights) {
  const DeviceGuard guard(any_inputs.query.device());
  const Inputs inputs = for_kernels(any_inputs);
  const int64_t offsets = inputs.window_bias.size(1);
  check_value(
      offsets <= kMaxWindow * kMaxWindow, "aggregated_attention on CUDA takes windows of 3, 5, 7 and 9, got ",
      offsets, " window offsets");
  const Tensor& query = inputs.query;
  const Tensor output = empty_like(query), rounding = empty_rounding(query, for_backward);
  const Tensor logsumexp = empty(query.sizes().slice(0, 4), query.options().dtype(kFloat));
  for_float_dtypes(query, [&](auto zero) {
    using T = decltype(zero);
    const Arguments<T> p(inputs, bias_weights);
    for_sizes_with_bias(p.channels, p.window, p.summands > 1, [&](auto groups, auto window_size, auto sums) {
      constexpr int kGroups = decltype(groups)::value, kWindow = decltype(window_size)::value;
      const int window = kWarps * kWarpQueries * p.offsets * static_cast<int>(sizeof(float));
      launch(
          forward_kernel<kGroups, kWindow, decltype(sums)::value, T>, blocks_over_image(p), kThreads,
          std::max(Stage<kGroups, T>::kBytes, window), p, output, logsumexp, rounding.numel() ? rounding : Tensor());
    });
  });
  return {output, logsumexp, rounding};
}

}  // namespace bioattn_mm
