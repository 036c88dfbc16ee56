// Aggregated attention on CUDA, forward: one pass over the pooled keys with an online softmax, then the window.

#include "cuda/aggregated_attention.cuh"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace bioattn_mm {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kLanes;
constexpr int kTiles = 8, kKeys = kTiles * kTile;  // pooled keys in shared memory at a time

template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads, kGroups <= 4 ? 2 : 1) forward_kernel(
    Arguments<T> p, T* output, float* logsumexp, T* rounding) {
  char* const shared_memory = block_memory();
  const Rows<kKeys, kGroups, T> keys{reinterpret_cast<T*>(shared_memory)};
  const TransposedRows<kKeys, kGroups, T> values{keys.data + keys.kSize};
  const Place place(p, kWarps);
  const int g = place.g, t = place.t;

  Pair<T> query[kGroups][2];
  load_rows(query, p.query, place.token, p.channels, t);

  // Pooled part: sums of exponentials relative to the highest logit so far.
  float sums[kGroups][4] = {};
  PooledBias<T> pooled_bias;
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  for (int first = 0; first < p.tiles(); first += kTiles) {
    const auto token = [&](int row) {
      return PooledTile(p, first + row / kTile).token(p, place.image, place.head, row % kTile);
    };
    __syncthreads();
    stage<kKeys, kGroups, kThreads>(p.pooled_key, p.channels, token, [&](int row, int channel, const Pair<T>& pair) {
      keys.store(row, channel, pair);
    });
    stage<kKeys, kGroups, kThreads>(p.pooled_value, p.channels, token, [&](int row, int channel, const Pair<T>& pair) {
      values.store(row, channel, pair);
    });
    __syncthreads();

    float logits[kTiles][4] = {};
    float new_highest[2] = {highest[0], highest[1]};
    PooledTile tile(p, first);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      multiply_add_steps<kGroups>(logits[n], query, [&](int c) { return keys.factor(n * kTile, c, g, t); });
      pooled_bias.add(logits[n], p, place, tile, n == 0);
      tile.next(p);
#pragma unroll
      for (int k = 0; k < 4; ++k) new_highest[k / 2] = fmaxf(new_highest[k / 2], logits[n][k]);
    }
    Pair<T> weights[kTiles][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      new_highest[r] = quad_max(new_highest[r]);
      // Where every logit so far is -inf, there is nothing to subtract.
      const float shift = new_highest[r] == -INFINITY ? 0 : new_highest[r];
      const float scale = exponential(highest[r] - shift);
      highest[r] = new_highest[r];
      total[r] *= scale;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) sums[c][2 * r] *= scale, sums[c][2 * r + 1] *= scale;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float x = exponential(logits[n][2 * r] - shift), y = exponential(logits[n][2 * r + 1] - shift);
        total[r] += x + y;
        weights[n][r] = make_pair<T>(x, y);
      }
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      add_product<kTiles>(sums[c], weights, [&](int n) { return values.factor(n * kTile, c, g, t); });
  }
  __syncthreads();

  // Window part: logits, then weights, of the sixteen queries of the warp.
  float* const window_weights = reinterpret_cast<float*>(shared_memory) + place.warp * kWarpQueries * p.offsets;
  float* const own_weights[2] = {window_weights + g * p.offsets, window_weights + (g + 8) * p.offsets};
  const T* const window_bias = p.window_bias + place.head * p.offsets;
  for_windows(p, place, [&](int i, int j, bool inside, const int (&offsets)[2]) {
    float products[2] = {0, 0};
    if (inside) {
      Pair<T> key[kGroups];
      load_channels(key, p.key, p.token(place.image, place.head, i, j), p.channels, t);
#pragma unroll
      for (int c = 0; c < kGroups; ++c)
        products[0] += dot(query[c][0], key[c]), products[1] += dot(query[c][1], key[c]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float product = quad_sum(products[r]);
      if (t == r && offsets[r] >= 0)
        own_weights[r][offsets[r]] = inside ? product + static_cast<float>(window_bias[offsets[r]]) : -INFINITY;
    }
  });
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float new_highest = highest[r];
    for (int o = t; o < p.offsets; o += 4) new_highest = fmaxf(new_highest, own_weights[r][o]);
    new_highest = quad_max(new_highest);
    float window_total = 0;
    for (int o = t; o < p.offsets; o += 4) {
      own_weights[r][o] = exponential(own_weights[r][o] - new_highest);
      window_total += own_weights[r][o];
    }
    const float pooled_scale = exponential(highest[r] - new_highest);
    const float all = quad_sum(total[r]) * pooled_scale + quad_sum(window_total);
    for (int o = t; o < p.offsets; o += 4)
      own_weights[r][o] =
          own_weights[r][o] / all + static_cast<float>(p.token_weights[place.token[r] * p.offsets + o]);
#pragma unroll
    for (int c = 0; c < kGroups; ++c) sums[c][2 * r] *= pooled_scale / all, sums[c][2 * r + 1] *= pooled_scale / all;
    if (place.inside[r] && t == 0) logsumexp[place.token[r]] = new_highest + logf(all);
  }
  __syncwarp();
  for_windows(p, place, [&](int i, int j, bool inside, const int (&offsets)[2]) {
    if (!inside) return;
    Pair<T> value[kGroups];
    load_channels(value, p.value, p.token(place.image, place.head, i, j), p.channels, t);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float weight = offsets[r] >= 0 ? own_weights[r][offsets[r]] : 0;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        sums[c][2 * r] += weight * static_cast<float>(value[c].x);
        sums[c][2 * r + 1] += weight * static_cast<float>(value[c].y);
      }
    }
  });
  store_rows(output, sums, place.token, place.inside, p.channels, t);
  if (rounding != nullptr) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[c][k] -= static_cast<float>(static_cast<T>(sums[c][k]));
    }
    store_rows(rounding, sums, place.token, place.inside, p.channels, t);
  }
}

}  // namespace

RoundedForward aggregated_attention_forward_cuda(const Inputs& any_inputs, bool for_backward) {
  const DeviceGuard guard(any_inputs.query.device());
  const Inputs inputs = any_inputs.map(for_kernels);
  const int64_t offsets = inputs.window_bias.size(1);
  TORCH_CHECK_VALUE(
      offsets <= kMaxWindow * kMaxWindow, "aggregated_attention on CUDA takes windows of 3, 5, 7 and 9, got ", offsets,
      " window offsets");
  Tensor output = at::empty_like(inputs.query);
  const bool rounds = for_backward && at::isReducedFloatingType(inputs.query.scalar_type());
  Tensor rounding = rounds ? at::empty_like(inputs.query) : at::empty({0}, inputs.query.options());
  Tensor logsumexp = at::empty(inputs.query.sizes().slice(0, 4), inputs.query.options().dtype(at::kFloat));
  for_dtype(inputs.query.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Arguments<T> p(inputs);
    for_channels(p.channels, [&](auto groups) {
      constexpr int kGroups = decltype(groups)::value;
      const size_t staged = (Rows<kKeys, kGroups, T>::kSize + TransposedRows<kKeys, kGroups, T>::kSize) * sizeof(T);
      const size_t window = kWarps * kWarpQueries * p.offsets * sizeof(float);
      launch(
          forward_kernel<kGroups, T>, blocks_over_image(p, kWarps), kThreads, std::max(staged, window), p,
          output.mutable_data_ptr<T>(), logsumexp.mutable_data_ptr<float>(),
          rounds ? rounding.mutable_data_ptr<T>() : nullptr);
    });
  });
  return {output, logsumexp, rounding};
}

}  // namespace bioattn_mm
