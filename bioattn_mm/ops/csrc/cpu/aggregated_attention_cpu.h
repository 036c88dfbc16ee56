// Aggregated attention on the CPU, fused: attention weights exist for one group of queries at a time.
//
// The steps for a group are in aggregated_attention_lanes.h; here are the loops over groups, and the copies between
// tokens in memory and planes of channels. Every sum belongs to one task, or tasks have sums of their own that are
// added up in order: results are the same for any number of threads.
#pragma once

#include "aggregated_attention_lanes.h"

namespace bioattn_mm::BIOATTN_ISA::aggregated_attention {
namespace {

constexpr int64_t kTileColumns = 32, kTileRows = 16;

template <typename T>
struct SizesOf : WindowSizes<int64_t> {
  explicit SizesOf(const CpuInputs& inputs)
      : WindowSizes<int64_t>(inputs.query, inputs.window_bias.size(1)),
        margin(window / 2),
        pooled_height(inputs.pooled_key.size(1)),
        pooled_width(inputs.pooled_key.size(2)),
        pooled(pooled_height * pooled_width),
        pooled_blocks(divide_up(pooled, kBlock)),
        padded_pooled(pooled_blocks * kBlock),
        padded_channels(round_up(channels, kBlock)),
        columns(std::min(round_up(width, kQueries<T>), kTileColumns)),
        column_blocks(divide_up(width, columns)),
        row_blocks(divide_up(height, kTileRows)),
        halo_columns(round_up(columns + 2 * margin, kLanes<T>)),
        padded_width(column_blocks * columns + 2 * margin),
        batch_heads(batch * heads) {}

  int64_t margin;
  int64_t pooled_height, pooled_width, pooled, pooled_blocks, padded_pooled;
  int64_t padded_channels;                     // channels of a token, in blocks of kBlock
  int64_t columns, column_blocks, row_blocks;  // columns of a tile; numbers of tiles
  int64_t halo_columns;                        // columns of a tile with the windows around it
  int64_t padded_width;                        // columns of the image with a margin
  int64_t batch_heads;                         // B * heads
};

// The biases of a pooled key for neighbouring queries, which are neighbours in memory: in a copy of the table, if
// there the next query has the next offset; else in an array (heads, R, Pw, columns).
template <typename T>
struct PooledBias {
  PooledBias(const CpuInputs& inputs, const SizesOf<T>& s)
      : heads(s.heads),
        rows(inputs.pooled_bias.size(1)),
        table_columns(inputs.pooled_bias.size(2)),
        starts(s.pooled_width),
        index(inputs.pooled_bias_columns.template const_data_ptr<int64_t>()) {
    in_table = true;
    for (int64_t k = s.pooled_width; k < s.width * s.pooled_width; ++k)
      in_table = in_table && index[k] == index[k - s.pooled_width] + 1;
    width = round_up(s.width, kQueries<T>);
    for (int64_t v = 0; v < s.pooled_width; ++v) starts[v] = in_table ? index[v] : v * width;
    row_stride = in_table ? table_columns : s.pooled_width * width;
    // Groups at the right edge of the image read up to a vector beyond the last row, and write as much of the
    // gradient. Each head is padded by this, because heads are computed side by side.
    head_stride = rows * row_stride + kQueries<T>;
    const T* table = inputs.pooled_bias.template const_data_ptr<T>();
    data.assign(heads * head_stride, T(0));
    if (in_table) {
      for (int64_t head = 0; head < heads; ++head)
        std::copy_n(table + head * rows * row_stride, rows * row_stride, data.data() + head * head_stride);
      return;
    }
    parallel_for(0, heads * rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t v = 0; v < s.pooled_width; ++v)
          for (int64_t j = 0; j < s.width; ++j)
            data[start_of(row) + v * width + j] = table[row * table_columns + index[j * s.pooled_width + v]];
    });
  }

  // The index at which a row begins, where rows are counted through all heads.
  int64_t start_of(int64_t row) const { return row / rows * head_stride + row % rows * row_stride; }

  // Adds up gradients with the layout of `data`, one for each block of columns.
  void reduce(const T* gradients, int64_t blocks, const SizesOf<T>& s, T* grad_table) const {
    parallel_for(0, heads * rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* target = grad_table + row * table_columns;
        std::fill_n(target, table_columns, T(0));
        for (int64_t block = 0; block < blocks; ++block) {
          const T* source = gradients + block * heads * head_stride + start_of(row);
          if (in_table) {
            for (int64_t column = 0; column < table_columns; ++column) target[column] += source[column];
          } else {
            for (int64_t v = 0; v < s.pooled_width; ++v)
              for (int64_t j = 0; j < s.width; ++j) target[index[j * s.pooled_width + v]] += source[v * width + j];
          }
        }
      }
    });
  }

  int64_t heads, rows, table_columns, row_stride, head_stride, width;
  bool in_table;
  std::vector<int64_t> starts;  // the index for each pooled column and the first query of a row
  const int64_t* index;
  Buffer<T> data;
};

// Copies of the pooled keys or values of all images and heads, column by column of the pooled grid, in the layouts
// that products read.
template <typename T, typename Element>
struct PooledTokens {
  static constexpr bool kRowsAreTokens = std::is_same_v<Element, T> && !kRowsInBlocks;

  explicit PooledTokens(const SizesOf<T>& s)
      : s(s),
        row_size(s.padded_channels),
        block_size(divide_up(s.channels, kPacked<Element>) * kBlock),
        size(s.padded_pooled * row_size + 2 * kQueries<T>),
        tokens(s.batch_heads * size),
        inverse_norms(s.batch_heads * s.padded_pooled),
        row_elements(kRowsAreTokens ? 0 : s.batch_heads * size),
        block_elements(s.batch_heads * s.pooled_blocks * block_size) {}

  // Copies the tokens of a head of an image; `unit` makes them unit vectors.
  template <typename Data>
  void load(const Data& source, int64_t batch_head, bool unit) {
    const int64_t image = batch_head / s.heads, head = batch_head % s.heads, channels = s.channels;
    T *token = tokens.data() + batch_head * size, *inverse_norm = inverse_norms.data() + batch_head * s.padded_pooled;
    for (int64_t v = 0; v < s.pooled_width; ++v)
      for (int64_t u = 0; u < s.pooled_height; ++u, token += row_size, ++inverse_norm) {
        const auto* data = source.at(image, head, u, v);
        for (int64_t c = 0; c < channels; ++c) token[c] = static_cast<T>(data[c]);
        if (!unit) continue;
        *inverse_norm = 1 / std::max(std::sqrt(dot(token, token, channels)), T(kSmallestNorm));
        for (int64_t c = 0; c < channels; ++c) token[c] *= *inverse_norm;
      }
    lay_out(
        PooledLayouts<T, Element>{
            tokens.data() + batch_head * size, row_elements.data() + (kRowsAreTokens ? 0 : batch_head * size),
            block_elements.data() + batch_head * s.pooled_blocks * block_size, s.padded_pooled, s.channels,
            row_size});
  }

  const T* token(int64_t batch_head, int64_t p) const { return tokens.data() + batch_head * size + p * row_size; }
  const Element* rows(int64_t batch_head) const {
    if constexpr (kRowsAreTokens)
      return token(batch_head, 0);
    else
      return row_elements.data() + batch_head * size;
  }
  const Element* blocks(int64_t batch_head) const {
    return block_elements.data() + batch_head * s.pooled_blocks * block_size;
  }

  const SizesOf<T>& s;
  int64_t row_size, block_size, size;
  Buffer<T> tokens, inverse_norms;
  Buffer<Element> row_elements, block_elements;
};

// The planes (d, stride) of the last rows that were loaded, as many as a window has.
template <typename T>
struct RowsOfPlanes {
  RowsOfPlanes(int64_t window, int64_t channels, int64_t stride)
      : window(window), size(channels * stride), planes(window * size), inverse_norms(stride), rows(window) {}

  T* operator[](int64_t row) { return planes.data() + row % window * size; }

  // Pointers to the rows in the window around a row, from a column on; null outside of the image.
  const T* const* around(int64_t row, int64_t height, int64_t column) {
    for (int64_t dy = 0; dy < window; ++dy) {
      const int64_t y = row - window / 2 + dy;
      rows[dy] = 0 <= y && y < height ? (*this)[y] + column : nullptr;
    }
    return rows.data();
  }

  int64_t window, size;
  Buffer<T> planes, inverse_norms;
  std::vector<const T*> rows;
};

// Tokens (B, H, W, heads, d) in memory, with any stride from column to column.
template <typename Data>
struct Tokens {
  explicit Tokens(const Tensor& tensor)
      : data(tensor.defined() ? static_cast<Data*>(tensor.data_ptr()) : nullptr),
        row_stride(data ? tensor.stride(1) : 0),
        column_stride(data ? tensor.stride(2) : 0),
        image_stride(data ? tensor.stride(0) : 0),
        size(data ? tensor.size(4) : 0) {}

  Data* at(int64_t image, int64_t head, int64_t row, int64_t column) const {
    return data + image * image_stride + row * row_stride + column * column_stride + head * size;
  }

  Data* data;
  int64_t row_stride, column_stride, image_stride, size;
};

// Copies `number` columns of a row, from `first` on, to planes, with zeros outside of the image. They are whole
// vectors of columns with `margin` more on both sides, and the planes may end with columns that are not needed.
// Meanwhile the row below, which is the next to be copied, is prefetched: to wait for it would take most of the time.
template <typename Data, typename T>
void load_planes(
    const Tokens<Data>& tokens, int64_t image, int64_t head, int64_t row, int64_t first, int64_t number,
    int64_t width, T* planes, int64_t margin = 0) {
  const int64_t left = std::clamp(-first, int64_t(0), number), right = std::clamp(width - first, left, number);
#if BIOATTN_BFLOAT16
  if constexpr (std::is_same_v<std::remove_const_t<Data>, c10::BFloat16>) {
    if (tokens.size >= TokensAndPlanes::kChannels) {
      const int64_t end = margin + (number - 2 * margin) / kLanes<T> * kLanes<T>;
      for (int64_t begin = margin; begin < end; begin += kLanes<T>) {
        Data* data = tokens.at(image, head, row, first + begin);
        for (int64_t lane = std::max(left - begin, int64_t(0)); lane < std::min(right - begin, kLanes<T>); ++lane) {
          __builtin_prefetch(data + tokens.row_stride + lane * tokens.column_stride);
          __builtin_prefetch(data + tokens.row_stride + lane * tokens.column_stride + tokens.size - 1);
        }
        const TokensAndPlanes group{
            const_cast<c10::BFloat16*>(data),
            tokens.column_stride,
            tokens.size,
            left - begin,
            right - begin,
            planes + begin,
            number};
        const bool all = group.left <= 0 && kLanes<T> <= group.right;
        all ? load_planes_in_pairs<true>(group) : load_planes_in_pairs<false>(group);
      }
      for (int64_t k = 0; k < 2 * margin; ++k) {
        const int64_t lane = k < margin ? k : end + k - margin;
        const bool exists = left <= lane && lane < right;
        const Data* source = exists ? tokens.at(image, head, row, first + lane) : nullptr;
        for (int64_t c = 0; c < tokens.size; ++c)
          planes[c * number + lane] = exists ? static_cast<T>(source[c]) : T(0);
      }
      return;
    }
  }
#endif
  for (int64_t c = 0; c < tokens.size && right - left < number; ++c) {
    std::fill(planes + c * number, planes + c * number + left, T(0));
    std::fill(planes + c * number + right, planes + (c + 1) * number, T(0));
  }
  int64_t lane = left;
  if constexpr (std::is_same_v<std::remove_const_t<Data>, float>) {
    if (tokens.size >= kLanes<float>)
      for (; lane + kLanes<float> <= right; lane += kLanes<float>) {
        const Data* source = tokens.at(image, head, row, first + lane);
        for (int64_t i = 0; i < kLanes<float>; ++i) {
          __builtin_prefetch(source + tokens.row_stride + i * tokens.column_stride);
          __builtin_prefetch(source + tokens.row_stride + i * tokens.column_stride + tokens.size - 1);
        }
        load_block(source, tokens.column_stride, tokens.size, planes + lane, number);
      }
  }
  for (; lane < right; ++lane) {
    const Data* source = tokens.at(image, head, row, first + lane);
    const Data* below = source + tokens.row_stride;
    __builtin_prefetch(below);
    __builtin_prefetch(below + tokens.size / 2);
    __builtin_prefetch(below + tokens.size - 1);
    for (int64_t c = 0; c < tokens.size; ++c) planes[c * number + lane] = static_cast<T>(source[c]);
  }
}

// Copies the lanes of a group from planes to tokens.
template <typename Data, typename T>
void store_planes(
    const T* planes, const Tokens<Data>& tokens, int64_t image, int64_t head, int64_t row, int64_t first,
    int64_t width) {
#if BIOATTN_BFLOAT16
  if constexpr (std::is_same_v<Data, c10::BFloat16>) {
    if (tokens.size >= TokensAndPlanes::kChannels)
      return store_planes_in_pairs(
          {tokens.at(image, head, row, first), tokens.column_stride, tokens.size, 0, width - first,
           const_cast<T*>(planes), kLanes<T>});
  }
#endif
  const int64_t number = std::min(kQueries<T>, width - first);
  int64_t lane = 0;
  if constexpr (std::is_same_v<Data, float>) {
    if (tokens.size >= kLanes<float>)
      for (; lane + kLanes<float> <= number; lane += kLanes<float>)
        store_block(
            planes + lane, kQueries<T>, tokens.size, tokens.at(image, head, row, first + lane), tokens.column_stride);
  }
  for (; lane < number; ++lane) {
    Data* target = tokens.at(image, head, row, first + lane);
    for (int64_t c = 0; c < tokens.size; ++c) target[c] = static_cast<Data>(planes[c * kQueries<T> + lane]);
  }
}

// The inputs of both passes: pointers, and copies in the layouts that the kernels read.
template <typename Data, typename T, typename Element>
struct Attention {
  explicit Attention(const CpuInputs& inputs)
      : s(inputs),
        cosine(inputs.scale.defined()),
        query(inputs.query),
        key(inputs.key),
        value(inputs.value),
        pooled_key(inputs.pooled_key),
        pooled_value(inputs.pooled_value),
        token_weights(inputs.token_weights),
        bias(inputs, s),
        bias_rows(inputs.pooled_bias_rows.template const_data_ptr<int64_t>()),
        window_bias(inputs.window_bias.template const_data_ptr<T>()),
        keys(s),
        values(s),
        log_numbers((s.window + 1) * (s.window + 1)) {
    if (cosine) {
      scale = inputs.scale.template const_data_ptr<T>();
      query_embedding = inputs.query_embedding.template const_data_ptr<T>();
      tokens = inputs.tokens.template const_data_ptr<T>();
      token_bias = inputs.token_bias.template const_data_ptr<T>();
    }
    for (int64_t rows = 0; rows <= s.window; ++rows)
      for (int64_t columns = 0; columns <= s.window; ++columns)
        log_numbers[rows * (s.window + 1) + columns] = std::log(static_cast<T>(rows * columns + s.pooled));
    parallel_for(0, s.batch_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t batch_head = begin; batch_head < end; ++batch_head) {
        keys.load(pooled_key, batch_head, cosine);
        values.load(pooled_value, batch_head, false);
      }
    });
  }

  // How many of the `length` rows, or columns, of the image are in the window around index i.
  int64_t inside(int64_t i, int64_t length) const {
    return std::min(i + s.margin, length - 1) - std::max(i - s.margin, int64_t(0)) + 1;
  }

  SizesOf<T> s;
  bool cosine;  // whether queries and keys are normalised here, and queries scaled
  Tokens<const Data> query, key, value, pooled_key, pooled_value, token_weights;
  PooledBias<T> bias;
  const int64_t* bias_rows;
  const T *window_bias, *scale = nullptr, *query_embedding = nullptr, *tokens = nullptr, *token_bias = nullptr;
  PooledTokens<T, Element> keys, values;
  Buffer<T> log_numbers;  // logarithms of numbers of keys, by the rows and columns of a query's window in the image
};

// The queries of some columns of a row, in planes.
template <typename Data, typename T, typename Element>
struct QueryPlanes {
  QueryPlanes(const Attention<Data, T, Element>& a, int64_t stride)
      : a(a),
        stride(stride),
        unit(a.s.channels * stride),
        scaled(a.s.channels * stride),
        inverse_norms(stride),
        factors(stride),
        log_lengths(stride) {}

  // Writes the scaled queries to `target`.
  void load(int64_t image, int64_t head, int64_t row, int64_t first, T* target, int64_t margin = 0) {
    if (!a.cosine) return load_planes(a.query, image, head, row, first, stride, a.s.width, target, margin);
    load_planes(a.query, image, head, row, first, stride, a.s.width, unit.data(), margin);
    make_unit(UnitVectors<T>{unit.data(), inverse_norms.data(), a.s.channels, stride});
    const T* log_numbers = a.log_numbers.data() + a.inside(row, a.s.height) * (a.s.window + 1);
    for (int64_t lane = 0; lane < stride; ++lane) {
      const int64_t column = first + lane;
      const bool in_image = 0 <= column && column < a.s.width;
      log_lengths[lane] = in_image ? log_numbers[a.inside(column, a.s.width)] : T(0);
      factors[lane] = a.scale[head] * log_lengths[lane];
    }
    const T* embedding = a.query_embedding + head * a.s.channels;
    scale_queries(ScaledQueries<T>{unit.data(), embedding, factors.data(), target, a.s.channels, stride});
  }

  const Attention<Data, T, Element>& a;
  int64_t stride;
  Buffer<T> unit, scaled;                         // planes
  Buffer<T> inverse_norms, factors, log_lengths;  // (stride)
};

// A task's buffers, and its loops over the groups of a tile: some rows of one block of columns.
template <typename Data, typename T, typename Element>
struct Tile {
  explicit Tile(const Attention<Data, T, Element>& a)
      : a(a),
        queries(a, a.s.columns),
        keys(a.s.window, a.s.channels, a.s.halo_columns),
        values(a.s.window, a.s.channels, a.s.halo_columns),
        outside(a.s.window * kQueries<T>),
        bias_indices(a.s.pooled),
        pooled(a.s.padded_pooled * kQueries<T>),
        window(a.s.offsets * kQueries<T>),
        token_weights(window),
        output(a.s.padded_channels * kQueries<T>),
        logsumexp(kQueries<T>),
        packed(std::max(a.s.padded_pooled, 2 * a.s.padded_channels) * kQueries<T>) {}

  // Calls load_row(row) for each row, and compute(group, row, column) for each group of its queries.
  template <typename LoadRow, typename Compute>
  void for_groups(
      int64_t batch_head, int64_t top, int64_t bottom, int64_t block, const LoadRow& load_row,
      const Compute& compute) {
    const auto& s = a.s;
    const int64_t image = batch_head / s.heads, head = batch_head % s.heads;
    const int64_t left = block * s.columns, right = std::min(left + s.columns, s.width);
    int64_t next = s.window ? std::max(top - s.margin, int64_t(0)) : s.height;
    for (int64_t row = top; row < bottom; ++row) {
      for (; next <= std::min(row + s.margin, s.height - 1); ++next) {
        load_planes(a.key, image, head, next, left - s.margin, s.halo_columns, s.width, keys[next], s.margin);
        if (a.cosine) make_unit(UnitVectors<T>{keys[next], keys.inverse_norms.data(), s.channels, s.halo_columns});
        load_planes(a.value, image, head, next, left - s.margin, s.halo_columns, s.width, values[next], s.margin);
      }
      queries.load(image, head, row, left, queries.scaled.data());
      for (int64_t v = 0, p = 0; v < s.pooled_width; ++v)
        for (int64_t u = 0; u < s.pooled_height; ++u, ++p)
          bias_indices[p] = a.bias_rows[row * s.pooled_height + u] * a.bias.row_stride + a.bias.starts[v];
      load_row(row);
      for (int64_t column = left; column < right; column += kQueries<T>)
        compute(group(batch_head, row, left, column), row, column);
    }
  }

  Group<T, Element> group(int64_t batch_head, int64_t row, int64_t left, int64_t column) {
    const auto& s = a.s;
    const int64_t image = batch_head / s.heads, head = batch_head % s.heads, first = column - left;
    for (int64_t dx = 0; dx < s.window; ++dx)
      for (int64_t lane = 0; lane < kQueries<T>; ++lane) {
        const int64_t x = column + lane + dx - s.margin;
        outside[dx * kQueries<T> + lane] = 0 <= x && x < s.width ? T(0) : -std::numeric_limits<T>::infinity();
      }
    Group<T, Element> group;
    group.sizes.channels = s.channels;
    group.sizes.window = s.window;
    group.sizes.offsets = s.offsets;
    group.sizes.pooled_keys = s.pooled;
    group.sizes.pooled_blocks = s.pooled_blocks;
    group.queries.scaled = queries.scaled.data() + first;
    group.queries.unit = queries.unit.data() + first;
    group.queries.stride = s.columns;
    group.neighbours.keys = keys.around(row, s.height, first);
    group.neighbours.values = values.around(row, s.height, first);
    group.neighbours.stride = s.halo_columns;
    group.neighbours.outside = outside.data();
    group.pooled.key_blocks = a.keys.blocks(batch_head);
    group.pooled.key_rows = a.keys.rows(batch_head);
    group.pooled.value_blocks = a.values.blocks(batch_head);
    group.pooled.value_rows = a.values.rows(batch_head);
    group.bias.data = a.bias.data.data() + head * a.bias.head_stride + column;
    group.bias.indices = bias_indices.data();
    group.parameters.window_bias = a.window_bias + head * s.offsets;
    group.parameters.tokens = a.cosine ? a.tokens + head * s.channels * s.offsets : nullptr;
    group.parameters.token_bias = a.cosine ? a.token_bias + head * s.offsets : nullptr;
    group.weights.pooled = pooled.data();
    group.weights.window = window.data();
    group.weights.tokens = token_weights.data();
    group.output = output.data();
    group.logsumexp = logsumexp.data();
    group.packed = packed.data();
    if (!a.cosine) load_planes(a.token_weights, image, head, row, column, kQueries<T>, s.width, token_weights.data());
    return group;
  }

  const Attention<Data, T, Element>& a;
  QueryPlanes<Data, T, Element> queries;
  RowsOfPlanes<T> keys, values;
  Buffer<T> outside;
  std::vector<int64_t> bias_indices;  // the indices for the first query of a row
  Buffer<T> pooled, window, token_weights, output, logsumexp;
  Buffer<Element> packed;
};

// The element of a query in a tensor (B, heads, H, W).
template <typename T, typename Sizes>
T* at_query(T* data, const Sizes& s, int64_t batch_head, int64_t row, int64_t column) {
  return data + (batch_head * s.height + row) * s.width + column;
}

template <typename Data, typename T, typename Element>
void forward(const CpuInputs& inputs, const Tensor& output, const Tensor& logsumexp) {
  const Attention<Data, T, Element> a(inputs);
  const auto& s = a.s;
  const Tokens<Data> target(output);
  T* logsumexp_data = logsumexp.mutable_data_ptr<T>();
  parallel_for(0, s.batch_heads * s.row_blocks * s.column_blocks, 1, [&](int64_t begin, int64_t end) {
    Tile<Data, T, Element> tile(a);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t batch_head = task / s.column_blocks / s.row_blocks, block = task % s.column_blocks;
      const int64_t top = task / s.column_blocks % s.row_blocks * kTileRows;
      const auto compute = [&](const Group<T, Element>& group, int64_t row, int64_t column) {
        attend(group);
        store_planes(tile.output.data(), target, batch_head / s.heads, batch_head % s.heads, row, column, s.width);
        std::copy_n(
            tile.logsumexp.data(), std::min(kQueries<T>, s.width - column),
            at_query(logsumexp_data, s, batch_head, row, column));
      };
      tile.for_groups(batch_head, top, std::min(top + kTileRows, s.height), block, [](int64_t) {}, compute);
    }
  });
}

// A task's sums for the gradients of the parameters of its head: sums of some rows in the type of the arithmetic, one
// for each lane, and totals in float64, because they have a term for each query.
template <typename T>
struct ParameterSums {
  explicit ParameterSums(const SizesOf<T>& s)
      : totals(number(s)),
        embedding(s.channels * kQueries<T>),
        scale(kQueries<T>),
        window_bias(s.offsets * kQueries<T>),
        tokens(s.channels * s.offsets * kQueries<T>),
        token_bias(window_bias) {}

  // Adds the lanes to the totals, which have the order of `BackwardPass::finish_parameters`, and starts them anew.
  void add_up() {
    double* total = totals.data();
    for (Buffer<T>* lanes : {&window_bias, &scale, &embedding, &tokens, &token_bias}) {
      for (size_t k = 0; k < lanes->size(); k += kQueries<T>) {
        double sum = 0;
        for (int64_t lane = 0; lane < kQueries<T>; ++lane) sum += (*lanes)[k + lane];
        *total++ += sum;
      }
      std::fill(lanes->begin(), lanes->end(), T(0));
    }
  }
  static int64_t number(const SizesOf<T>& s) {
    return s.offsets + 1 + s.channels + s.channels * s.offsets + s.offsets;
  }

  std::vector<double> totals;
  Buffer<T> embedding, scale, window_bias, tokens, token_bias;
};

// A task's sums for the gradients of the pooled keys and values of its head, and the factors of the last groups,
// which are multiplied and added when there are kGroups of them.
template <typename T, typename Element>
struct PooledSums {
  explicit PooledSums(const SizesOf<T>& s)
      : keys(round_up(s.pooled, kKeysOfSums<T, Element>)),
        row_channels(round_up(s.channels, kChannelsOfSums<T, Element>)),
        of_keys(kGroups * keys * kSteps<T, Element>),
        of_values(of_keys),
        queries(kGroups * kSteps<T, Element> * row_channels),
        grad_outputs(queries),
        key_sums(size(s)),
        value_sums(size(s)) {}

  // The elements of the sums for the keys, or the values, of one head.
  static int64_t size(const SizesOf<T>& s) {
    return round_up(s.pooled, kKeysOfSums<T, Element>) * round_up(s.channels, kChannelsOfSums<T, Element>);
  }

  // The memory for the factors of the next group. When they are written, `count_group` follows.
  OuterFactors<Element> of_next_group() {
    const int64_t factor = groups * keys * kSteps<T, Element>, row = groups * kSteps<T, Element> * row_channels;
    OuterFactors<Element> factors;
    factors.of_keys = of_keys.data() + factor;
    factors.of_values = of_values.data() + factor;
    factors.queries = queries.data() + row;
    factors.grad_outputs = grad_outputs.data() + row;
    factors.row_channels = row_channels;
    return factors;
  }
  void count_group() {
    if (++groups == kGroups) multiply();
  }

  // Adds the sums to those of more rows, and starts them anew: one long sum would lose digits.
  void add_to(T* keys_target, T* values_target) {
    multiply();
    for (size_t k = 0; k < key_sums.size(); ++k) {
      keys_target[k] += key_sums[k], values_target[k] += value_sums[k];
      key_sums[k] = value_sums[k] = T(0);
    }
  }

 private:
  void multiply() {
    add_outer_products(
        OuterProducts<T, Element>{key_sums.data(), of_keys.data(), queries.data(), groups, keys, row_channels});
    add_outer_products(
        OuterProducts<T, Element>{
            value_sums.data(), of_values.data(), grad_outputs.data(), groups, keys, row_channels});
    groups = 0;
  }

  int64_t keys, row_channels;  // padded
  int64_t groups = 0;          // groups whose factors are kept
  Buffer<Element> of_keys, of_values, queries, grad_outputs;
  Buffer<T> key_sums, value_sums;
};

// The backward pass. Its first part goes over the queries and writes what the other two need: the gradients of the
// window's logits and sums for the pooled tokens. Where tasks of one head add to the same sums, each has sums of its
// own, which are added up in order at the end.
template <typename Data, typename T, typename Element>
struct BackwardPass {
  BackwardPass(const Tensor& grad_output, const CpuInputs& inputs, const Tensor& logsumexp, CpuInputs& grad)
      : a(inputs),
        s(a.s),
        grad(grad),
        grad_output(grad_output),
        grad_query(grad.query),
        grad_token_weights(grad.token_weights),
        logsumexp(logsumexp.const_data_ptr<T>()),
        window_row(s.offsets * s.padded_width),
        window_data(zeros({2, s.batch_heads, s.height, window_row}, logsumexp.options())),
        grad_logits(window_data.mutable_data_ptr<T>()),
        value_weights(grad_logits + s.batch_heads * s.height * window_row),
        bias_blocks(a.bias.in_table ? s.column_blocks : 1),
        bias_sums(zeros({bias_blocks, s.heads * a.bias.head_stride}, logsumexp.options())),
        bias_sums_data(bias_sums.mutable_data_ptr<T>()),
        pooled_size(PooledSums<T, Element>::size(s)),
        pooled_sums(zeros({2, s.column_blocks, s.batch_heads, pooled_size}, logsumexp.options())),
        pooled_sums_data(pooled_sums.mutable_data_ptr<T>()),
        parameter_sums(
            zeros({s.column_blocks, s.heads, ParameterSums<T>::number(s)}, logsumexp.options().dtype(kDouble))) {}

  void run() {
    differentiate_queries();
    gather_window_gradients();
    finish_pooled_gradients();
    a.bias.reduce(bias_sums_data, bias_blocks, s, grad.pooled_bias.mutable_data_ptr<T>());
    finish_parameters();
  }

 private:
  // A task has one head and one block of columns in all images.
  void differentiate_queries() const {
    double* totals = parameter_sums.template mutable_data_ptr<double>();
    parallel_for(0, s.heads * s.column_blocks, 1, [&](int64_t begin, int64_t end) {
      QueryTask task(*this);
      for (int64_t number = begin; number < end; ++number) {
        const int64_t head = number / s.column_blocks, block = number % s.column_blocks;
        ParameterSums<T> sums(s);
        for (int64_t image = 0; image < s.batch; ++image) task.run(image, head, block, sums);
        std::copy(sums.totals.begin(), sums.totals.end(), totals + (block * s.heads + head) * sums.totals.size());
      }
    });
  }

  struct QueryTask {
    explicit QueryTask(const BackwardPass& pass)
        : pass(pass),
          tile(pass.a),
          pooled_sums(pass.s),
          grad_output(pass.s.channels * pass.s.columns),
          grad_window(pass.s.offsets * kQueries<T>),
          grad_token_weights(grad_window),
          grad_pooled(tile.pooled) {}

    void run(int64_t image, int64_t head, int64_t block, ParameterSums<T>& sums) {
      const auto& s = pass.s;
      const int64_t batch_head = image * s.heads + head, left = block * s.columns;
      const auto add_up = [&] {
        pooled_sums.add_to(pass.pooled_sums_of(0, block, batch_head), pass.pooled_sums_of(1, block, batch_head));
        sums.add_up();
      };
      const auto load_row = [&](int64_t row) {
        if (row % kTileRows == 0) add_up();
        load_planes(pass.grad_output, image, head, row, left, s.columns, s.width, grad_output.data());
      };
      const auto compute = [&](const Group<T, Element>& group, int64_t row, int64_t column) {
        differentiate_group(group, batch_head, row, column, block, sums);
      };
      tile.for_groups(batch_head, 0, s.height, block, load_row, compute);
      add_up();
    }

    void differentiate_group(
        const Group<T, Element>& forward, int64_t batch_head, int64_t row, int64_t column, int64_t block,
        ParameterSums<T>& sums) {
      const auto& s = pass.s;
      const int64_t image = batch_head / s.heads, head = batch_head % s.heads;
      const int64_t first = column - block * s.columns, valid = std::min(kQueries<T>, s.width - column);
      std::copy_n(at_query(pass.logsumexp, s, batch_head, row, column), valid, tile.logsumexp.data());
      std::fill(tile.logsumexp.begin() + valid, tile.logsumexp.end(), std::numeric_limits<T>::infinity());

      const int64_t kept = (batch_head * s.height + row) * pass.window_row + s.margin + column;
      GradientGroup<T, Element> group;
      group.forward = forward;
      group.grad.output = grad_output.data() + first;
      group.grad.query = tile.output.data();
      group.grad.pooled_logits = grad_pooled.data();
      group.grad.window_logits = grad_window.data();
      group.grad.token_weights = grad_token_weights.data();
      group.grad.pooled_bias = pass.bias_sums_of(block, head) + column;
      group.grad.window_bias_sums = sums.window_bias.data();
      group.grad.token_weight_sums = sums.token_bias.data();
      group.window.grad_logits = pass.grad_logits + kept;
      group.window.value_weights = pass.value_weights + kept;
      group.window.stride = s.padded_width;
      group.outer = pooled_sums.of_next_group();
      differentiate(group);
      pooled_sums.count_group();

      if (pass.a.cosine)
        differentiate_projection(forward, head, first, sums);
      else
        store_planes(grad_token_weights.data(), pass.grad_token_weights, image, head, row, column, s.width);
      store_planes(tile.output.data(), pass.grad_query, image, head, row, column, s.width);
    }

    // Turns the gradient of the scaled queries into that of the queries.
    void differentiate_projection(
        const Group<T, Element>& group, int64_t head, int64_t first, ParameterSums<T>& sums) {
      const auto& s = pass.s;
      QueryGradient<T> query;
      query.channels = s.channels;
      query.offsets = s.offsets;
      query.unit = group.queries.unit;
      query.unit_stride = group.queries.stride;
      query.inverse_norms = tile.queries.inverse_norms.data() + first;
      query.factors = tile.queries.factors.data() + first;
      query.log_lengths = tile.queries.log_lengths.data() + first;
      query.query_embedding = pass.a.query_embedding + head * s.channels;
      query.tokens = group.parameters.tokens;
      query.grad_token_weights = grad_token_weights.data();
      query.gradient = tile.output.data();
      query.embedding_sums = sums.embedding.data();
      query.scale_sums = sums.scale.data();
      query.token_sums = sums.tokens.data();
      differentiate_query(query);
    }

    const BackwardPass& pass;
    Tile<Data, T, Element> tile;
    PooledSums<T, Element> pooled_sums;
    Buffer<T> grad_output;  // planes
    Buffer<T> grad_window, grad_token_weights, grad_pooled;
  };

  // The gradients of the keys and values in windows. A task has some rows of one block of columns of keys, and
  // gathers from the queries in whose windows they are.
  void gather_window_gradients() const {
    if (!s.window) return;
    const Tokens<Data> grad_key(grad.key), grad_value(grad.value);
    parallel_for(0, s.batch_heads * s.row_blocks * s.column_blocks, 1, [&](int64_t begin, int64_t end) {
      QueryPlanes<Data, T, Element> loader(a, s.halo_columns);
      RowsOfPlanes<T> queries(s.window, s.channels, s.halo_columns), grad_outputs(queries);
      Buffer<T> keys(s.channels * kQueries<T>), inverse_norms(kQueries<T>), key_gradient(keys), value_gradient(keys);
      std::vector<const T*> logits(s.window), weights(s.window);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t batch_head = task / s.column_blocks / s.row_blocks, block = task % s.column_blocks;
        const int64_t top = task / s.column_blocks % s.row_blocks * kTileRows, left = block * s.columns;
        const int64_t image = batch_head / s.heads, head = batch_head % s.heads;
        int64_t next = std::max(top - s.margin, int64_t(0));
        for (int64_t row = top; row < std::min(top + kTileRows, s.height); ++row) {
          for (; next <= std::min(row + s.margin, s.height - 1); ++next) {
            loader.load(image, head, next, left - s.margin, queries[next], s.margin);
            load_planes(
                grad_output, image, head, next, left - s.margin, s.halo_columns, s.width, grad_outputs[next],
                s.margin);
          }
          for (int64_t column = left; column < std::min(left + s.columns, s.width); column += kQueries<T>) {
            for (int64_t dy = 0; dy < s.window; ++dy) {
              const int64_t kept = (batch_head * s.height + row - s.margin + dy) * window_row + column;
              logits[dy] = grad_logits + kept, weights[dy] = value_weights + kept;
            }
            WindowGradients<T> group;
            group.channels = s.channels;
            group.window = s.window;
            group.offsets = s.offsets;
            group.queries = queries.around(row, s.height, column - left);
            group.grad_outputs = grad_outputs.around(row, s.height, column - left);
            group.stride = s.halo_columns;
            group.grad_logits = logits.data();
            group.value_weights = weights.data();
            group.kept_stride = s.padded_width;
            group.grad_key = key_gradient.data();
            group.grad_value = value_gradient.data();
            gather_gradients(group);
            if (a.cosine) {
              load_planes(a.key, image, head, row, column, kQueries<T>, s.width, keys.data());
              make_unit(UnitVectors<T>{keys.data(), inverse_norms.data(), s.channels, kQueries<T>});
              differentiate_unit(UnitGradient<T>{s.channels, keys.data(), inverse_norms.data(), key_gradient.data()});
            }
            store_planes(key_gradient.data(), grad_key, image, head, row, column, s.width);
            store_planes(value_gradient.data(), grad_value, image, head, row, column, s.width);
          }
        }
      }
    });
  }

  // The gradients of the pooled keys and values, from the sums of all blocks of columns.
  void finish_pooled_gradients() const {
    const Tokens<Data> grad_key(grad.pooled_key), grad_value(grad.pooled_value);
    const int64_t row_channels = round_up(s.channels, kChannelsOfSums<T, Element>);
    parallel_for(0, s.batch_heads, 1, [&](int64_t begin, int64_t end) {
      Buffer<T> key_sum(s.channels), value_sum(s.channels);
      for (int64_t batch_head = begin; batch_head < end; ++batch_head)
        for (int64_t p = 0; p < s.pooled; ++p) {
          std::fill(key_sum.begin(), key_sum.end(), T(0));
          std::fill(value_sum.begin(), value_sum.end(), T(0));
          for (int64_t block = 0; block < s.column_blocks; ++block) {
            const T *keys = pooled_sums_of(0, block, batch_head), *values = pooled_sums_of(1, block, batch_head);
            for (int64_t c = 0; c < s.channels; ++c) {
              const int64_t index = index_of_sum<T, Element>(p, c, row_channels);
              key_sum[c] += keys[index], value_sum[c] += values[index];
            }
          }
          if (a.cosine) differentiate_pooled_norm(batch_head, p, key_sum.data());
          const int64_t image = batch_head / s.heads, head = batch_head % s.heads;
          const int64_t u = p % s.pooled_height, v = p / s.pooled_height;
          Data *key = grad_key.at(image, head, u, v), *value = grad_value.at(image, head, u, v);
          for (int64_t c = 0; c < s.channels; ++c)
            key[c] = static_cast<Data>(key_sum[c]), value[c] = static_cast<Data>(value_sum[c]);
        }
    });
  }

  // Turns the gradient of a pooled key's unit vector into that of the key, as `differentiate_norm` does for a group.
  void differentiate_pooled_norm(int64_t batch_head, int64_t p, T* gradient) const {
    const T* unit = a.keys.token(batch_head, p);
    const T inverse = a.keys.inverse_norms[batch_head * s.padded_pooled + p];
    T along = dot(gradient, unit, s.channels);
    along = inverse < T(kInverseOfSmallestNorm) ? along : T(0);
    for (int64_t c = 0; c < s.channels; ++c) gradient[c] = inverse * (gradient[c] - unit[c] * along);
  }

  void finish_parameters() const {
    const Tensor sums = parameter_sums.sum({0}).to(bias_sums.scalar_type());
    int64_t first = 0;
    const auto next = [&](int64_t number, Span sizes) {
      const Tensor part = sums.narrow(1, first, number).contiguous().view(sizes);
      first += number;
      return part;
    };
    grad.window_bias = next(s.offsets, {s.heads, s.offsets});
    if (!a.cosine) return;
    grad.scale = next(1, {s.heads});
    grad.query_embedding = next(s.channels, {s.heads, s.channels});
    grad.tokens = next(s.channels * s.offsets, {s.heads, s.channels, s.offsets});
    grad.token_bias = next(s.offsets, {s.heads, s.offsets});
  }

  // The sums of a head for the gradient of its bias, as in PooledBias::data.
  T* bias_sums_of(int64_t block, int64_t head) const {
    return bias_sums_data + ((a.bias.in_table ? block : 0) * s.heads + head) * a.bias.head_stride;
  }
  // The sums of a head for the gradients of its pooled keys, `of` = 0, or values, `of` = 1.
  T* pooled_sums_of(int64_t of, int64_t block, int64_t batch_head) const {
    return pooled_sums_data + ((of * s.column_blocks + block) * s.batch_heads + batch_head) * pooled_size;
  }

  const Attention<Data, T, Element> a;
  const SizesOf<T>& s;
  CpuInputs& grad;
  const Tokens<const Data> grad_output;
  const Tokens<Data> grad_query, grad_token_weights;
  const T* logsumexp;
  // The gradients of the window's logits, and the weights of its values: rows (k * k, padded_width).
  const int64_t window_row;
  const Tensor window_data;
  T *const grad_logits, *const value_weights;
  const int64_t bias_blocks;
  const Tensor bias_sums;  // (bias_blocks, heads * head_stride)
  T* const bias_sums_data;
  const int64_t pooled_size;
  const Tensor pooled_sums;  // (2, column_blocks, batch_heads, pooled_size)
  T* const pooled_sums_data;
  const Tensor parameter_sums;  // (column_blocks, heads, ParameterSums::number)
};

// Calls function(Data(), T(), Element()) with the types of the tokens, of the arithmetic, and of the factors of
// products with pooled tokens.
template <typename Function>
void for_dtypes(const Tensor& tokens, const Function& function) {
#if BIOATTN_BFLOAT16
  function(c10::BFloat16(), float(), BFloat16x2());
#else
  dispatch<float, double, c10::Half, c10::BFloat16>(tokens.scalar_type(), [&](auto zero) {
    using T = std::conditional_t<std::is_same_v<decltype(zero), double>, double, float>;
    function(zero, T(), T());
  });
#endif
}

}  // namespace

Forward forward(const CpuInputs& inputs) {
  const Span sizes = inputs.query.sizes();
  Tensor output = empty(sizes, inputs.query.options());
  Tensor logsumexp = empty({sizes[0], sizes[3], sizes[1], sizes[2]}, inputs.window_bias.options());
  for_dtypes(inputs.query, [&](auto data, auto number, auto element) {
    forward<decltype(data), decltype(number), decltype(element)>(inputs, output, logsumexp);
  });
  return {output, logsumexp};
}

void backward(const Tensor& grad_output, const CpuInputs& inputs, const Tensor& logsumexp, CpuInputs& gradients) {
  for_dtypes(inputs.query, [&](auto data, auto number, auto element) {
    using Pass = BackwardPass<decltype(data), decltype(number), decltype(element)>;
    Pass(grad_output, inputs, logsumexp, gradients).run();
  });
}

}  // namespace bioattn_mm::BIOATTN_ISA::aggregated_attention
