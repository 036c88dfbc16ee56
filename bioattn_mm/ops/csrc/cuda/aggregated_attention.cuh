// What the kernels of aggregated attention share: arguments, which lane computes what, and copies to shared memory.
//
// A warp has sixteen queries, two rows of eight columns: lane quad g has the queries of column g, in the upper row
// (r = 0) and in the lower (r = 1), and lane t of the quad has channels 2t and 2t + 1 of every eight. These are the
// layouts of the tensor cores (device.cuh), so queries, sums and gradients stay in registers between the pooled part,
// which consists of matrix products, and the window part, which does not. Pooled keys come in tiles of eight neighbours
// in a row of the pooled grid; where a row ends within a tile, the rest of the tile has no weight.
#pragma once

#include "../aggregated_attention.h"
#include "cuda/device.cuh"
#include "cuda/launch.h"

#include <cmath>

namespace bioattn_mm {

constexpr int kWarpRows = 2, kWarpColumns = 8, kWarpQueries = kWarpRows * kWarpColumns;
constexpr int kMaxWindow = 9, kMaxChannels = 64;
constexpr int kTile = 8;  // pooled keys, or queries of one row, side by side in a matrix product

// Pointers to the inputs, and their sizes. All indices of tokens fit int; offsets in memory may not.
template <typename T>
struct Arguments : Pointers<T>, Sizes<int> {
  explicit Arguments(const Inputs& inputs) : Pointers<T>(pointers_to<Pointers<T>>(inputs)), Sizes<int>(inputs) {}

  __device__ bool inside(int i, int j) const { return 0 <= i && i < height && 0 <= j && j < width; }

  __host__ __device__ int tiles_in_row() const { return (pooled_width + kTile - 1) / kTile; }
  __host__ __device__ int tiles() const { return pooled_height * tiles_in_row(); }
};

__device__ __forceinline__ int clamp(int x, int high) { return x < high ? x : high; }

// What a lane computes: the grid of blocks is (tiles of the image, heads, batch), and the warps of a block have rows of
// the image below one another.
struct Place {
  template <typename T>
  __device__ Place(const Arguments<T>& p, int warps)
      : warp(threadIdx.x / kLanes), g(threadIdx.x % kLanes / 4), t(threadIdx.x % 4), head(blockIdx.y), image(blockIdx.z) {
    const int blocks_in_row = (p.width + kWarpColumns - 1) / kWarpColumns;
    top = (blockIdx.x / blocks_in_row * warps + warp) * kWarpRows;
    column = blockIdx.x % blocks_in_row * kWarpColumns + g;
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      inside[r] = p.inside(top + r, column);
      // Lanes outside of the image compute the same as those at its edge, and write nothing.
      row[r] = clamp(top + r, p.height - 1);
      token[r] = p.token(image, head, row[r], clamp(column, p.width - 1));
    }
  }

  int warp, g, t, head, image;
  int top, column;  // upper row of the warp, column of the lane
  int row[2];       // of the lane's two queries, as the next two
  bool inside[2];
  int64_t token[2];
};

// The grid of blocks that covers the images.
template <typename T>
dim3 blocks_over_image(const Arguments<T>& p, int warps) {
  const unsigned columns = (p.width + kWarpColumns - 1) / kWarpColumns;
  const unsigned rows = (p.height + warps * kWarpRows - 1) / (warps * kWarpRows);
  return dim3(rows * columns, p.heads, p.batch);
}

// Loads the lane's channels of a token, for kGroups groups of eight; zero beyond the last channel.
template <int kGroups, typename T>
__device__ __forceinline__ void load_channels(Pair<T> (&pairs)[kGroups], const T* data, int64_t token, int channels, int t) {
#pragma unroll
  for (int c = 0; c < kGroups; ++c)
    pairs[c] = kTile * c < channels ? load_pair(data + token * channels + kTile * c + 2 * t) : make_pair<T>(0, 0);
}

// Loads the lane's channels of its two tokens, as a left factor of matrix products.
template <int kGroups, typename T>
__device__ __forceinline__ void load_rows(
    Pair<T> (&pairs)[kGroups][2], const T* data, const int64_t (&token)[2], int channels, int t) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      pairs[c][r] =
          kTile * c < channels ? load_pair(data + token[r] * channels + kTile * c + 2 * t) : make_pair<T>(0, 0);
  }
}

// Writes sums, in the layout of an accumulator, to the lane's two tokens.
template <int kGroups, typename T>
__device__ __forceinline__ void store_rows(
    T* data, const float (&sums)[kGroups][4], const int64_t (&token)[2], const bool (&inside)[2], int channels, int t) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      if (inside[r] && kTile * c < channels)
        *reinterpret_cast<Pair<T>*>(data + token[r] * channels + kTile * c + 2 * t) =
            make_pair<T>(sums[c][2 * r], sums[c][2 * r + 1]);
  }
}

// Stride of rows in shared memory, in elements: an odd multiple of eight, so that the eight rows that a warp reads at
// once lie in different banks.
constexpr int padded(int length) { return length / 8 % 2 ? length : length + 8; }

// Rows of channels in shared memory: right factors of matrix products that sum over the channels or, transposed, over
// the rows.
template <int kRows, int kGroups, typename T>
struct Rows {
  static constexpr int kStride = padded(kTile * kGroups);
  T* data;

  __device__ void store(int row, int channel, const Pair<T>& pair) const {
    *reinterpret_cast<Pair<T>*>(data + row * kStride + channel) = pair;
  }
  // Right factor for a group of channels; its columns are the eight rows from `first`.
  __device__ Pair<T> factor(int first, int group, int g, int t) const {
    return load_pair(data + (first + g) * kStride + kTile * group + 2 * t);
  }
  static constexpr int kSize = kRows * kStride;
};

template <int kRows, int kGroups, typename T>
struct TransposedRows {
  static constexpr int kStride = padded(kRows);
  T* data;

  __device__ void store(int row, int channel, const Pair<T>& pair) const {
    data[channel * kStride + row] = pair.x;
    data[(channel + 1) * kStride + row] = pair.y;
  }
  // Right factor for the eight rows from `first`; its columns are the channels of a group.
  __device__ Pair<T> factor(int first, int group, int g, int t) const {
    return load_pair(data + (kTile * group + g) * kStride + first + 2 * t);
  }
  static constexpr int kSize = kTile * kGroups * kStride;
};

// Copies kRows rows of channels to shared memory: `token(row)` gives the number of a row's token, or -1 for a row of
// zeros, and `store(row, channel, pair)` writes a pair of channels.
template <int kRows, int kGroups, int kThreads, typename T, typename Token, typename Store>
__device__ __forceinline__ void stage(const T* data, int channels, const Token& token, const Store& store) {
  constexpr int kPairs = kTile * kGroups / 2;
  for (int k = threadIdx.x; k < kRows * kPairs; k += kThreads) {
    const int row = k / kPairs, channel = k % kPairs * 2;
    const int64_t number = token(row);
    store(row, channel, number >= 0 && channel < channels ? load_pair(data + number * channels + channel) : make_pair<T>(0, 0));
  }
}

// A tile of pooled keys: its row in the pooled grid and its first column.
struct PooledTile {
  template <typename T>
  __device__ PooledTile(const Arguments<T>& p, int tile)
      : u(tile / p.tiles_in_row()), v(tile % p.tiles_in_row() * kTile) {}
  template <typename T>
  __device__ void next(const Arguments<T>& p) {
    v += kTile;
    if (v >= p.pooled_width) v = 0, ++u;
  }
  // Number of the pooled token in (B, Ph, Pw, heads), -1 beyond the grid.
  template <typename T>
  __device__ int64_t token(const Arguments<T>& p, int image, int head, int k) const {
    return u < p.pooled_height && v + k < p.pooled_width ? p.pooled_token(image, head, u, v + k) : -1;
  }

  int u, v;
};

// Position bias of the lane's two queries, for one tile of pooled keys after the other.
template <typename T>
struct PooledBias {
  // Adds the bias to the logits of a tile, and makes them -inf beyond the pooled grid. `first` says that the tile does
  // not follow the one of the last call.
  __device__ void add(float (&logits)[4], const Arguments<T>& p, const Place& place, const PooledTile& tile, bool first) {
    const bool exists = tile.u < p.pooled_height;
    if (exists && (first || tile.v == 0)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = p.pooled_bias_rows[place.row[r] * p.pooled_height + tile.u];
        BIOATTN_KERNEL_ASSERT(0 <= row && row < p.bias_rows, "pooled_bias_rows has a row that pooled_bias has not");
        rows[r] = p.pooled_bias + p.bias(place.head, row, clamp(place.column, p.width - 1));
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int v = tile.v + 2 * place.t + k % 2;
      logits[k] = exists && v < p.pooled_width ? logits[k] + static_cast<float>(rows[k / 2][v]) : -INFINITY;
    }
  }

  const T* rows[2];
};

// Calls function(i, j, inside, offsets) for every token (i, j) in the windows of the lane's two queries, row by row;
// offsets[r] is its offset in the window of query r, or -1 if it is not in that window.
template <typename T, typename Function>
__device__ __forceinline__ void for_windows(const Arguments<T>& p, const Place& place, const Function& function) {
  const int margin = p.window / 2;
  for (int dy = 0; dy <= p.window; ++dy) {
    for (int dx = 0; dx < p.window; ++dx) {
      const int offsets[2] = {dy < p.window ? dy * p.window + dx : -1, dy > 0 ? (dy - 1) * p.window + dx : -1};
      const int i = place.top - margin + dy, j = place.column - margin + dx;
      function(i, j, p.inside(i, j), offsets);
    }
  }
}

// A tensor as the kernels read it: contiguous and, where it is a view of memory that begins elsewhere, aligned for the
// widest loads. PyTorch's own allocations are.
inline Tensor for_kernels(const Tensor& tensor) {
  const Tensor contiguous = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 ? contiguous.clone() : contiguous;
}

// Calls function(std::integral_constant<int, kGroups>()) with the smallest compiled number of groups of eight channels
// that holds a head's channels.
template <typename Function>
void for_channels(int64_t channels, const Function& function) {
  TORCH_CHECK_VALUE(
      channels % kTile == 0 && 0 < channels && channels <= kMaxChannels,
      "aggregated_attention on CUDA takes 8, 16, ... 64 channels a head, got ", channels);
  if (channels <= 16) return function(std::integral_constant<int, 2>());
  if (channels <= 24) return function(std::integral_constant<int, 3>());
  if (channels <= 32) return function(std::integral_constant<int, 4>());
  return function(std::integral_constant<int, 8>());
}

// Calls function(T()) for the dtypes of the kernels.
template <typename Function>
void for_dtype(at::ScalarType dtype, const Function& function) {
  if (dtype == at::kFloat) return function(float());
  if (dtype == at::kHalf) return function(c10::Half());
  TORCH_CHECK_TYPE(
      dtype == at::kBFloat16, "aggregated_attention on CUDA takes float32, float16 and bfloat16, got ", dtype);
  function(c10::BFloat16());
}

}  // namespace bioattn_mm
