// The kernels of aggregated attention share these arguments, copies to shared memory, and the work of each lane.
// A warp has sixteen queries, two rows of eight columns: lane quad g has the queries of column g, in the upper row (r
// = 0) and in the lower (r = 1), and lane t of the quad has channels 2t and 2t + 1 of every eight. These are the
// layouts of the tensor cores (device.cuh): queries and sums stay in registers between pooled part and window part.
// The other factor of the products comes from shared memory in runs of eight neighbours in a row of their grid, in
// such an order that lane t has the logits of the t-th of four runs, whose biases it loads at once.
#pragma once

#include "../aggregated_attention.h"
#include "cuda/device.cuh"
#include "cuda/launch.h"

namespace bioattn_mm {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = 2, kWarpColumns = 8, kWarpQueries = kWarpRows * kWarpColumns;
constexpr int kMaxWindow = 9, kMaxChannels = 64;
constexpr int kTile = 8;  // tokens, or channels, side by side in a matrix product; and tokens in a run

// The tiles, of eight tokens each, that are in shared memory at a time: as many bytes in every dtype.
template <typename T>
constexpr int kTiles = sizeof(T) == 2 ? 8 : 4;
template <typename T>
constexpr int kStaged = kTile * kTiles<T>;

// A grid of tokens in runs of eight neighbours in a row. The last run of a row may have fewer tokens.
struct Grid {
  Grid(int height, int width) : height(height), width(width) {}

  int height, width, padded_width = round_up(width, kTile);
  int runs = height * padded_width / kTile;
  // The way from a run to the fourth behind it.
  int rows_of_four = 4 / std::max(padded_width / kTile, 1);
  int columns_of_four = 4 % std::max(padded_width / kTile, 1) * kTile;
};

// A run, given by its row and its first column. The row may be beyond the end of the grid.
struct Run {
  __device__ Run() : row(0), column(0) {}
  __device__ Run(const Grid& grid, int number)
      : row(number / (grid.padded_width / kTile)), column(number % (grid.padded_width / kTile) * kTile) {}

  // The run `distance`, at most seven, behind this one. The loop is shorter than a division.
  __device__ Run behind(const Grid& grid, int distance) const {
    Run run = *this;
#pragma unroll 1
    for (run.column += distance * kTile; run.column >= grid.padded_width; ++run.row) run.column -= grid.padded_width;
    return run;
  }

  // Goes on to the fourth run from here. A division for each run would be a third of the work of a loop.
  __device__ void advance(const Grid& grid) {
    row += grid.rows_of_four, column += grid.columns_of_four;
    if (column >= grid.padded_width) column -= grid.padded_width, ++row;
  }

  int row, column;
};

// Distances between neighbours in a row of tokens, in bytes.
struct Strides {
  int query, key, value, pooled_key, pooled_value;
};

// Pointers to the inputs, and their sizes. All indices of tokens fit int; offsets in memory may not.
template <typename T>
struct Arguments : Pointers<T>, Sizes<int> {
  // `inputs` as from `for_kernels`. With `weights`, (H, Ph, n - 1), biases are sums of n rows, (H, Ph, n).
  Arguments(const Inputs& inputs, const Tensor& weights)
      : Pointers<T>(pointers_to<Pointers<T>>(inputs)),
        Sizes<int>(inputs),
        queries(this->height, this->width),
        pooled_keys(this->pooled_height, this->pooled_width),
        stride{
            stride_of(inputs.query), stride_of(inputs.key), stride_of(inputs.value), stride_of(inputs.pooled_key),
            stride_of(inputs.pooled_value)},
        bias_weights(DataOf{weights}),
        summands(weights.defined() ? static_cast<int>(weights.size(2)) + 1 : 1) {}

  static int stride_of(const Tensor& tokens) { return tokens.stride(2) * sizeof(T); }

  __device__ bool inside(int i, int j) const { return 0 <= i && i < height && 0 <= j && j < width; }

  Grid queries, pooled_keys;
  Strides stride;
  const float* bias_weights;
  int summands;  // n
};

// The rows in a bias: kernels are compiled by themselves for biases that are sums.
template <bool kSums, typename T>
__device__ __forceinline__ int summands_of(const Arguments<T>& p) {
  return kSums ? p.summands : 1;
}

__device__ __forceinline__ int clamp(int x, int high) { return x < high ? x : high; }

// The size of the window: kWindow where the kernel is compiled for one size; kWindow = 0 stands for any.
template <int kWindow, typename T>
__device__ __forceinline__ int window_of(const Arguments<T>& p) {
  return kWindow ? kWindow : p.window;
}

// Whether a head has the group of eight channels: kernels for 2 groups run 8 or 16 channels, those for 8 40 to 64.
template <int kGroups>
__device__ __forceinline__ bool has_group(int group, int channels) {
  constexpr int kAtLeast = kGroups == 8 ? 5 : kGroups == 2 ? 1 : kGroups;
  return group < kAtLeast || kTile * group < channels;
}

// The queries and channels of a lane. Blocks are (tiles of the image, heads, batch), warps rows below one another.
struct Place {
  template <typename T>
  __device__ explicit Place(const Arguments<T>& p)
      : warp(threadIdx.x / kWarpSize),
        g(threadIdx.x % kWarpSize / 4),
        t(threadIdx.x % 4),
        head(blockIdx.y),
        image(blockIdx.z),
        head_channel(head * p.channels),
        channel(head_channel + 2 * t) {
    const int blocks_in_row = p.queries.padded_width / kWarpColumns;
    top = (blockIdx.x / blocks_in_row * kWarps + warp) * kWarpRows;
    column = blockIdx.x % blocks_in_row * kWarpColumns + g;
    valid_column = clamp(column, p.width - 1);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      inside[r] = p.inside(top + r, column);
      // Lanes outside of the image compute the same as those at its edge, and write nothing.
      row[r] = clamp(top + r, p.height - 1);
      token[r] = (image * p.height + row[r]) * p.width + valid_column;
    }
  }

  int warp, g, t, head, image;
  int head_channel;  // first channel of the head among those of a token
  int channel;       // first channel of the lane
  int top, column;   // upper row of the warp, column of the lane
  int valid_column;  // within the image
  int row[2];        // this and the next two arrays have the lane's two queries
  bool inside[2];
  int token[2];  // index in (B, H, W)
};

// The grid of blocks that covers the images.
template <typename T>
dim3 blocks_over_image(const Arguments<T>& p) {
  const unsigned columns = p.queries.padded_width / kWarpColumns;
  const unsigned rows = divide_up(p.height, kWarps * kWarpRows);
  return dim3(rows * columns, p.heads, p.batch);
}

// Loads the lane's channels of a token, for kGroups groups of eight; zero beyond the last. `token` is the first.
template <int kGroups, typename T>
__device__ __forceinline__ void load_channels(Pair<T> (&pairs)[kGroups], const T* token, int channels) {
#pragma unroll
  for (int c = 0; c < kGroups; ++c)
    pairs[c] = has_group<kGroups>(c, channels) ? load_pair(token + kTile * c) : Pair<T>{T(0), T(0)};
}

// Loads the lane's channels of two tokens as a left factor. `data` begins with its first channel of the first token.
template <int kGroups, typename T>
__device__ __forceinline__ void load_rows(
    Pair<T> (&pairs)[kGroups][2], const T* data, const int (&tokens)[2], int stride, int channels) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Pair<T> row[kGroups];
    load_channels(row, offset_pointer(data, tokens[r], stride), channels);
#pragma unroll
    for (int c = 0; c < kGroups; ++c) pairs[c][r] = row[c];
  }
}

// Adds factor * token to the sums of the lane's row r, in the layout of an accumulator.
template <int kGroups, typename T>
__device__ __forceinline__ void add_scaled(
    float (&sums)[kGroups][4], int r, float factor, const Pair<T> (&token)[kGroups]) {
#pragma unroll
  for (int c = 0; c < kGroups; ++c) {
    sums[c][2 * r] = fmaf(factor, static_cast<float>(token[c].x), sums[c][2 * r]);
    sums[c][2 * r + 1] = fmaf(factor, static_cast<float>(token[c].y), sums[c][2 * r + 1]);
  }
}

// Writes sums, in the layout of an accumulator, to two tokens.
template <int kGroups, typename T>
__device__ __forceinline__ void store_rows(
    T* data, const float (&sums)[kGroups][4], const int (&tokens)[2], const bool (&inside)[2], int stride,
    int channels) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!inside[r]) continue;
    T* const token = offset_pointer(data, tokens[r], stride);
#pragma unroll
    for (int c = 0; c < kGroups; ++c)
      if (has_group<kGroups>(c, channels))
        *reinterpret_cast<Pair<T>*>(token + kTile * c) = make_pair<T>(sums[c][2 * r], sums[c][2 * r + 1]);
  }
}

// Rows of channels in shared memory: right factors of matrix products that sum over the channels or over the rows.
template <int kGroups, typename T>
struct Rows {
  // The distance of rows is odd in units of sixteen bytes: the eight rows that a warp reads lie in different banks.
  static constexpr int kLength = kTile * kGroups;
  static constexpr int kStride = sizeof(T) == 4 ? kLength + 4 : kGroups % 2 ? kLength : kLength + 8;
  static constexpr int kSize = kStaged<T> * kStride;

  // Right factors for two groups of channels, b[n][0] and b[n][1]: their columns are rows 8n to 8n + 7 from `first`.
  __device__ void factors(Pair<T> (&b)[2][2], int first, int group) const {
    if constexpr (sizeof(T) == 2 && kTensorCores<T>) {
      const int lane = threadIdx.x % kWarpSize, row = lane / 16 * kTile + lane % kTile;
      Pair<T> matrices[4];
      load_matrices<false>(matrices, data + (first + row) * kStride + kTile * (group + lane / kTile % 2));
      b[0][0] = matrices[0], b[0][1] = matrices[1], b[1][0] = matrices[2], b[1][1] = matrices[3];
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) b[k / 2][k % 2] = factor(first + k / 2 * kTile, group + k % 2);
    }
  }

  // Right factors for one group of channels: the columns of b[n] are rows 8n to 8n + 7 from `first`.
  __device__ void factors(Pair<T> (&b)[4], int first, int group) const {
    if constexpr (sizeof(T) == 2 && kTensorCores<T>) {
      load_matrices<false>(b, data + (first + threadIdx.x % kWarpSize) * kStride + kTile * group);
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) b[n] = factor(first + n * kTile, group);
    }
  }

  // Right factors whose columns are a group of channels; factor n has rows 8n to 8n + 7 from `first`.
  __device__ void transposed_factors(Pair<T> (&b)[4], int first, int group) const {
    if constexpr (sizeof(T) == 2 && kTensorCores<T>) {
      load_matrices<true>(b, data + (first + threadIdx.x % kWarpSize) * kStride + kTile * group);
    } else {
      const int g = threadIdx.x % kWarpSize / 4, t = threadIdx.x % 4;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const T* const upper = data + (first + kTile * n + 2 * t) * kStride + kTile * group + g;
        b[n] = {upper[0], upper[kStride]};
      }
    }
  }

  T* data;

 private:
  __device__ Pair<T> factor(int first, int group) const {
    return load_pair(data + (first + threadIdx.x % kWarpSize / 4) * kStride + kTile * group + threadIdx.x % 4 * 2);
  }
};

// products (16 x 32, as four tiles) += a (16 x channels) times the 32 rows from `first`, transposed.
template <int kGroups, typename T>
__device__ __forceinline__ void multiply_by_rows(
    float (*products)[4], const Pair<T> (&a)[kGroups][2], const Rows<kGroups, T>& rows, int first) {
#pragma unroll
  for (int c = 0; c + 1 < kGroups; c += 2) {
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      Pair<T> b[2][2];
      rows.factors(b, first + n * kTile, c);
      multiply_add(products[n], a[c], a[c + 1], b[0][0], b[0][1]);
      multiply_add(products[n + 1], a[c], a[c + 1], b[1][0], b[1][1]);
    }
  }
  if constexpr (kGroups % 2) {
    Pair<T> b[4];
    rows.factors(b, first, kGroups - 1);
#pragma unroll
    for (int n = 0; n < 4; ++n) multiply_add(products[n], a[kGroups - 1], b[n]);
  }
}

// sums (16 x channels) += a (16 x 32, as four tiles) times the 32 rows from `first`. Tensor cores round every sum
// toward zero: in float32 each product is summed by itself, and added with rounding to nearest.
template <int kGroups, typename T>
__device__ __forceinline__ void add_product_of_rows(
    float (&sums)[kGroups][4], const Pair<T> (*a)[2], const Rows<kGroups, T>& rows, int first) {
#pragma unroll
  for (int c = 0; c < kGroups; ++c) {
    Pair<T> b[4];
    rows.transposed_factors(b, first, c);
    if constexpr (sizeof(T) == 2) {
      multiply_add(sums[c], a[0], a[1], b[0], b[1]);
      multiply_add(sums[c], a[2], a[3], b[2], b[3]);
    } else {
      float product[4] = {};
      multiply_add(product, a[0], a[1], b[0], b[1]);
      multiply_add(product, a[2], a[3], b[2], b[3]);
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[c][k] += product[k];
    }
  }
}

// Copies the same tokens of two tensors to shared memory, kStaged<T> at a time, while those before are worked on. A
// thread copies (part of) one row, and finds its token once.
template <int kGroups, typename T>
struct Stage {
  using Matrix = Rows<kGroups, T>;
  static constexpr int kBytes = 4 * Matrix::kSize * sizeof(T);  // two tensors, twice

  // `first` and `second` begin with the grid's first token.
  __device__ Stage(
      char* shared_memory, const Grid& grid, const Run& first_run, const T* first, int first_stride, const T* second,
      int second_stride)
      : run(first_run.behind(grid, row_of_thread() / 32 * 4 + row_of_thread() % kTile / 2)),
        shared(reinterpret_cast<T*>(shared_memory)),
        source(of_second() ? second : first),
        stride(of_second() ? second_stride : first_stride) {
    optimisation_barrier(source);
  }

  __device__ Matrix first(int buffer) const { return {shared + 2 * buffer * Matrix::kSize}; }
  __device__ Matrix second(int buffer) const { return {shared + (2 * buffer + 1) * Matrix::kSize}; }

  // Begins to copy the next tokens.
  __device__ void copy(const Grid& grid, int buffer, int channels) {
    constexpr int kChunk = Chunk<T>::kSize, kChunks = Matrix::kLength / kChunk;
    const int column = run.column + row_of_thread() / kTile % 4 * 2 + row_of_thread() % 2;
    const bool exists = run.row < grid.height && column < grid.width;
    const T* const token = offset_pointer(source, run.row * grid.width + column, stride);
    T* const target = (of_second() ? second(buffer) : first(buffer)).data + row_of_thread() * Matrix::kStride;
#pragma unroll
    for (int k = 0; k < kChunks / kParts; ++k) {
      const int chunk = k * kParts + threadIdx.x % kParts;
      copy_to_shared(
          target + chunk * kChunk, token + chunk * kChunk,
          exists && has_group<kGroups>(k * kParts * kChunk / kTile, channels));
    }
#pragma unroll
    for (int four = 0; four < kTiles<T> / 4; ++four) run.advance(grid);
  }

 private:
  // The threads that copy one row.
  static constexpr int kParts = kThreads / (2 * kStaged<T>);

  // Row 8n + 2t + k of every 32 rows has token 2n + k of the t-th run.
  static __device__ int row_of_thread() { return threadIdx.x / kParts % kStaged<T>; }
  static __device__ bool of_second() { return threadIdx.x >= kThreads / 2; }

  Run run;
  T* shared;
  const T* source;
  int stride;
};

// Begins with the first run of an image's pooled keys and values.
template <int kGroups, typename T>
__device__ __forceinline__ Stage<kGroups, T> stage_of_pooled_tokens(
    char* shared_memory, const Arguments<T>& p, const Place& place) {
  const int first = place.image * p.pooled;
  return Stage<kGroups, T>(
      shared_memory, p.pooled_keys, Run(),
      offset_pointer(p.pooled_key, first, p.stride.pooled_key) + place.head_channel, p.stride.pooled_key,
      offset_pointer(p.pooled_value, first, p.stride.pooled_value) + place.head_channel, p.stride.pooled_value);
}

// The biases of a run beyond the grid, -inf, in each dtype: variables, as the compiler would branch on constants.
static __device__ Chunk<uint32_t> minus_infinity_float[2] = {
    {0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u}, {0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u}};
static __device__ Chunk<uint32_t> minus_infinity_half[1] = {{0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u}};
static __device__ Chunk<uint32_t> minus_infinity_bfloat16[1] = {{0xff80ff80u, 0xff80ff80u, 0xff80ff80u, 0xff80ff80u}};

template <typename T>
__device__ __forceinline__ const T* minus_infinity() {
  Chunk<uint32_t>* const run = std::is_same_v<T, float>       ? minus_infinity_float
                               : std::is_same_v<T, c10::Half> ? minus_infinity_half
                                                              : minus_infinity_bfloat16;
  return reinterpret_cast<const T*>(run);
}

// Adds the same kCount elements, two or a run, of weighted rows of a bias, `size` bytes each, to `sums`. `weights`
// has those of all rows but the last.
template <int kCount, typename T>
__device__ __forceinline__ void sum_rows(
    float (&sums)[kCount], const int64_t* rows, const float* weights, int summands, const T* data, int size) {
  float rest = 1;
#pragma unroll 1
  for (int k = 0; k < summands; ++k) {
    const float weight = k + 1 < summands ? weights[k] : rest;
    rest -= weight;
    const T* const row = offset_pointer(data, static_cast<int>(rows[k]), size);
    if constexpr (kCount == 2) {
      const Pair<T> two = load_pair(row);
      sums[0] = fmaf(weight, static_cast<float>(two.x), sums[0]);
      sums[1] = fmaf(weight, static_cast<float>(two.y), sums[1]);
    } else {
#pragma unroll
      for (int first = 0; first < kCount; first += Chunk<T>::kSize) {
        const Chunk<T> elements = load_chunk(row + first);
#pragma unroll
        for (int i = 0; i < Chunk<T>::kSize; ++i)
          sums[first + i] = fmaf(weight, static_cast<float>(elements.elements[i]), sums[first + i]);
      }
    }
  }
}

// The position biases of two rows of logits: the lane's queries over runs of pooled keys, or its keys over queries.
template <bool kSums, typename T>
struct RunBias {
  // Makes a run's biases, -inf beyond the end of the grid, the first summands of its four tiles of logits.
  __device__ void start(float (*logits)[4], const Grid& grid, const Run& run) const {
    constexpr int kSize = Chunk<T>::kSize;
    const bool exists = run.row < grid.height;
    const int row = exists ? run.row : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kSums) {
        float biases[kTile] = {};
        sum_rows(
            biases, offset_pointer(rows[r], row, row_stride), offset_pointer(weights[r], row, weights_stride),
            summands, offset_pointer(data[r], run.column, sizeof(T)), size);
        // A weight of 0 would make -inf, with which rows are padded, NaN.
        const int number = exists ? grid.width - run.column : 0;
#pragma unroll
        for (int k = 0; k < kTile; ++k) logits[k / 2][2 * r + k % 2] = k < number ? biases[k] : -INFINITY;
        continue;
      }
      // Indices of rows fit int.
      const int bias_row = *offset_pointer(rows[r], row, row_stride);
      const T* first = offset_pointer(offset_pointer(data[r], run.column, sizeof(T)), bias_row, size);
      if (!exists) first = minus_infinity<T>();
      optimisation_barrier(first);
#pragma unroll
      for (int vector = 0; vector < kTile / kSize; ++vector) {
        const Chunk<T> biases = load_chunk(first + vector * kSize);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const int k = vector * kSize + i;
          logits[k / 2][2 * r + k % 2] = static_cast<float>(biases.elements[i]);
        }
      }
    }
  }

  const int64_t* rows[2];   // indices of the rows of the bias, for runs in row 0 of their grid
  int row_stride;           // bytes from these indices to those for the next row
  const T* data[2];         // bias of the first token in row 0 of the bias
  int size;                 // bytes of a row of the bias
  const float* weights[2];  // of sums: the weights of their rows but the last, for runs in row 0
  int weights_stride, summands;
};

// The position biases of the lane's two queries over the pooled keys.
template <bool kSums, typename T>
__device__ __forceinline__ RunBias<kSums, T> bias_of_queries(const Arguments<T>& p, const Place& place) {
  const int summands = summands_of<kSums>(p);
  RunBias<kSums, T> bias;
  const int width = p.pooled_keys.padded_width;
  bias.row_stride = summands * static_cast<int>(sizeof(int64_t));
  bias.weights_stride = (summands - 1) * static_cast<int>(sizeof(float)), bias.summands = summands;
  bias.size = p.width * width * static_cast<int>(sizeof(T));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = place.row[r] * p.pooled_height;
    bias.rows[r] = p.pooled_bias_rows + pair * summands;
    bias.weights[r] = p.bias_weights + pair * (summands - 1);
    bias.data[r] = offset_pointer(p.pooled_bias, place.head * p.bias_rows, bias.size) + place.valid_column * width;
    optimisation_barrier(bias.rows[r], bias.data[r]);
  }
  optimisation_barrier(bias.row_stride, bias.size);
  return bias;
}

// Calls function(dy, dx, inside, token) for every token in the windows of the lane's two queries; where not inside,
// `token` is some other one: loads need no branches. The offset is dy * window + dx for the upper query, if dy <
// window, and one row less for the lower, if dy > 0. The compiler may work on kRows rows at once.
template <int kWindow, int kRows = kWindow + 1, typename T, typename Function>
__device__ __forceinline__ void for_windows(const Arguments<T>& p, const Place& place, const Function& function) {
  const int window = window_of<kWindow>(p), margin = window / 2, left = place.column - margin;
#pragma unroll kRows
  for (int dy = 0; dy <= window; ++dy) {
    const int i = place.top - margin + dy, first = (place.image * p.height + i) * p.width + left;
    const bool inside_row = static_cast<unsigned>(i) < static_cast<unsigned>(p.height);
#pragma unroll kWindow ? kWindow : 1
    for (int dx = 0; dx < window; ++dx) {
      const bool inside = inside_row && static_cast<unsigned>(left + dx) < static_cast<unsigned>(p.width);
      function(dy, dx, inside, inside ? first + dx : place.token[0]);
    }
  }
}

// Adds to `sums` the tokens in the windows of the lane's two queries, times the weights in shared memory.
template <int kWindow, int kGroups, typename T>
__device__ __forceinline__ void add_windows(
    float (&sums)[kGroups][4], const Arguments<T>& p, const Place& place, const T* tokens, int stride,
    float* const (&weights)[2]) {
  const int window = window_of<kWindow>(p);
  for_windows<kWindow>(p, place, [&](int dy, int dx, bool inside, int token) {
    Pair<T> channels[kGroups];
    load_channels(channels, offset_pointer(tokens, token, stride), p.channels);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int in_window = inside && (r == 0 ? dy < window : dy > 0);
      optimisation_barrier(in_window);
      // The load needs no branch: beyond the window it finds other elements of the block.
      const float loaded = weights[r][(dy - r) * window + dx], weight = in_window ? loaded : 0;
      add_scaled(sums, r, weight, channels);
    }
  });
}

// Calls function(o) for the lane's share of the offsets in a window, every fourth.
template <int kWindow, typename T, typename Function>
__device__ __forceinline__ void for_offsets(const Arguments<T>& p, int t, const Function& function) {
  const int window = window_of<kWindow>(p), offsets = window * window;
#pragma unroll kWindow ? (kWindow * kWindow + 3) / 4 : 1
  for (int o = 0; o < offsets; o += 4)
    if (o + t < offsets) function(o + t);
}

// Position biases (..., columns) whose rows are padded to whole runs with -inf, so that every run is aligned.
inline Tensor in_whole_runs(const Tensor& bias) {
  const int64_t missing = round_up(bias.size(-1), kTile) - bias.size(-1);
  return missing ? pad(bias, {0, missing}, -INFINITY) : bias;
}

inline Inputs for_kernels(Inputs inputs) {
  for (Tensor* tokens : {&inputs.query, &inputs.key, &inputs.value, &inputs.pooled_key, &inputs.pooled_value})
    *tokens = dense(StridedTokens(*tokens));
  inputs.window_bias = dense(inputs.window_bias), inputs.pooled_bias = dense(in_whole_runs(inputs.pooled_bias));
  inputs.pooled_bias_rows = dense(inputs.pooled_bias_rows), inputs.token_weights = dense(inputs.token_weights);
  return inputs;
}

// The pairs of a query row and a pooled row that share a row of the bias are pairs[begin] to pairs[end - 1].
struct Range {
  int begin, end;
};

// The indices of all pairs, sorted by their row (or column) of the bias in `rows`, and a `Range` of each row.
std::tuple<Tensor, Tensor> pairs_by_row(const Tensor& rows, int64_t number);

// The forward pass; with `bias_weights`, float32 (H, Ph, n - 1), biases are sums of rows, pooled_bias_rows (H, Ph,
// n).
RoundedForward aggregated_attention_of_sums(const Inputs& inputs, bool for_backward, const Tensor& bias_weights);

// The backward pass with float32 gradients of the window's bias and of pooled keys and values, the latter two as sums
// of parts of the queries: (splits, B, Ph, Pw, heads, d).
Inputs aggregated_attention_backward_sums(
    const Tensor& grad_output, const Inputs& inputs, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rounding, const Tensor& bias_weights);

// Calls function(integral_constant kGroups, integral_constant kWindow) with the smallest compiled number of groups of
// eight channels, and the window's size or 0 for any: TransNeXt's 24 channels and 3 x 3 have kernels of their own.
template <typename Function>
void for_sizes(int64_t channels, int64_t window, const Function& function) {
  check_value(
      channels % kTile == 0 && 0 < channels && channels <= kMaxChannels,
      "aggregated_attention on CUDA takes 8, 16, ... 64 channels a head, got ", channels);
  const std::integral_constant<int, 0> any;
  if (channels <= 16) return function(std::integral_constant<int, 2>(), any);
  const std::integral_constant<int, 3> three;
  if (channels <= 24 && window == 3) return function(three, three);
  if (channels <= 24) return function(three, any);
  if (channels <= 32) return function(std::integral_constant<int, 4>(), any);
  return function(std::integral_constant<int, 8>(), any);
}

// The same for kernels with position biases, with a third argument: whether these are sums.
template <typename Function>
void for_sizes_with_bias(int64_t channels, int64_t window, bool sums, const Function& function) {
  for_sizes(channels, window, [&](auto groups, auto size) {
    if (sums)
      function(groups, size, std::true_type());
    else
      function(groups, size, std::false_type());
  });
}

}  // namespace bioattn_mm
