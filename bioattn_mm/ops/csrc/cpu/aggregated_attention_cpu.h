// Aggregated attention on the CPU, fused: attention weights exist for one group of queries at a time.
//
// The steps for a group are in aggregated_attention_lanes.h; here are the loops over groups, and the copies between
// tokens in memory and planes of channels. In the first part of the backward pass a task owns one head and one block
// of columns, and in the second the keys of some rows: sums have the same order for any number of threads.
#pragma once

#include "aggregated_attention_lanes.h"

namespace bioattn_mm::BIOATTN_ISA::aggregated_attention {
namespace {

constexpr int64_t kTileColumns = 32, kTileRows = 16;
int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }

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
        planes(batch * heads) {}

  int64_t margin;
  int64_t pooled_height, pooled_width, pooled, pooled_blocks, padded_pooled;
  int64_t padded_channels;                     // of a token, in blocks
  int64_t columns, column_blocks, row_blocks;  // of a tile
  int64_t halo_columns;                        // of a tile and the windows around it
  int64_t padded_width;                        // of the image with a margin
  int64_t planes;                              // pairs of an image and a head
};

// The bias of each pooled key for neighbouring queries is contiguous: in the table as it is, if the next query has
// the next offset; else in a copy (heads, R, Pw, columns).
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
    // Groups at the right edge of the image read, and of gradients write, a vector beyond the last row at most: there
    // is room for it behind each head, because heads are computed side by side.
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
            data[place_of(row) + v * width + j] = table[row * table_columns + index[j * s.pooled_width + v]];
    });
  }

  // Where a row begins, of those of all heads.
  int64_t place_of(int64_t row) const { return row / rows * head_stride + row % rows * row_stride; }

  // Adds up gradients with the layout of `data`, one for each block of columns.
  void reduce(const T* gradients, int64_t blocks, const SizesOf<T>& s, T* grad_table) const {
    parallel_for(0, heads * rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* target = grad_table + row * table_columns;
        std::fill_n(target, table_columns, T(0));
        for (int64_t block = 0; block < blocks; ++block) {
          const T* source = gradients + block * heads * head_stride + place_of(row);
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
  std::vector<int64_t> starts;  // of each pooled column, for the first query of a row
  const int64_t* index;
  Buffer<T> data;
};

// Copies of the pooled keys or values of all images and heads, the columns of the pooled grid one after the other, in
// the layouts that products read.
template <typename T, typename Element>
struct PooledTokens {
  static constexpr bool kRowsAreTokens = std::is_same_v<Element, T> && !kRowsInBlocks;

  explicit PooledTokens(const SizesOf<T>& s)
      : s(s),
        row_size(s.padded_channels),
        block_size(divide_up(s.channels, kNumbers<Element>) * kBlock),
        size(s.padded_pooled * row_size + 2 * kQueries<T>),
        tokens(s.planes * size),
        inverse_norms(s.planes * s.padded_pooled),
        row_elements(kRowsAreTokens ? 0 : s.planes * size),
        block_elements(s.planes * s.pooled_blocks * block_size) {}

  // Copies the tokens of a plane, as unit vectors if that is wanted.
  template <typename Data>
  void load(const Data& source, int64_t plane, bool unit) {
    const int64_t image = plane / s.heads, head = plane % s.heads, channels = s.channels;
    T *token = tokens.data() + plane * size, *inverse_norm = inverse_norms.data() + plane * s.padded_pooled;
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
            tokens.data() + plane * size, row_elements.data() + (kRowsAreTokens ? 0 : plane * size),
            block_elements.data() + plane * s.pooled_blocks * block_size, s.padded_pooled, s.channels, row_size});
  }

  const T* token(int64_t plane, int64_t p) const { return tokens.data() + plane * size + p * row_size; }
  const Element* rows(int64_t plane) const {
    if constexpr (kRowsAreTokens)
      return token(plane, 0);
    else
      return row_elements.data() + plane * size;
  }
  const Element* blocks(int64_t plane) const { return block_elements.data() + plane * s.pooled_blocks * block_size; }

  const SizesOf<T>& s;
  int64_t row_size, block_size, size;
  Buffer<T> tokens, inverse_norms;
  Buffer<Element> row_elements, block_elements;
};

// A row of planes (d, stride) for each row of a window; of the last rows that were loaded.
template <typename T>
struct RowsOfPlanes {
  RowsOfPlanes(int64_t window, int64_t channels, int64_t stride)
      : window(window), size(channels * stride), planes(window * size), inverse_norms(stride), rows(window) {}

  T* operator[](int64_t row) { return planes.data() + row % window * size; }

  // Points to what is in the window of a row, from a column on.
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

// Tokens (B, H, W, heads, d) in memory; there may be others between two columns.
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

// Copies `number` columns of a row from `first` on to planes, with zeros outside of the image: whole vectors of
// columns with `margin` more on both sides; planes may end with some that are not needed. The row below, which is the
// next to be copied, is fetched into the cache meanwhile: most of the time would be spent waiting for it.
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
    parallel_for(0, s.planes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        keys.load(pooled_key, plane, cosine);
        values.load(pooled_value, plane, false);
      }
    });
  }

  // Tokens of a row inside of the image that are in the window of position `i`.
  int64_t inside(int64_t i, int64_t length) const {
    return std::min(i + s.margin, length - 1) - std::max(i - s.margin, int64_t(0)) + 1;
  }

  SizesOf<T> s;
  bool cosine;  // queries and keys are to be normalised, and the queries to be scaled
  Tokens<const Data> query, key, value, pooled_key, pooled_value, token_weights;
  PooledBias<T> bias;
  const int64_t* bias_rows;
  const T *window_bias, *scale = nullptr, *query_embedding = nullptr, *tokens = nullptr, *token_bias = nullptr;
  PooledTokens<T, Element> keys, values;
  Buffer<T> log_numbers;
};

// The queries of some columns of a row.
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

  // Writes the scaled queries to `target`, if it is given.
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
    scale_queries(
        ScaledQueries<T>{
            unit.data(), a.query_embedding + head * a.s.channels, factors.data(), target, a.s.channels, stride});
  }

  const Attention<Data, T, Element>& a;
  int64_t stride;
  Buffer<T> unit, scaled, inverse_norms, factors, log_lengths;
};

// Buffers for one tile of rows and columns, and the loops over its groups; each thread has its own.
template <typename Data, typename T, typename Element>
struct Tile {
  explicit Tile(const Attention<Data, T, Element>& a)
      : a(a),
        queries(a, a.s.columns),
        keys(a.s.window, a.s.channels, a.s.halo_columns),
        values(a.s.window, a.s.channels, a.s.halo_columns),
        outside(a.s.window * kQueries<T>),
        bias_places(a.s.pooled),
        pooled(a.s.padded_pooled * kQueries<T>),
        window(a.s.offsets * kQueries<T>),
        token_weights(window),
        output(a.s.padded_channels * kQueries<T>),
        logsumexp(kQueries<T>),
        packed(std::max(a.s.padded_pooled, 2 * a.s.padded_channels) * kQueries<T>) {}

  // Calls compute(group, row, column) for the groups of queries in some rows of a block of columns.
  template <typename LoadRow, typename Compute>
  void for_groups(
      int64_t plane, int64_t top, int64_t bottom, int64_t block, const LoadRow& load_row, const Compute& compute) {
    const auto& s = a.s;
    const int64_t image = plane / s.heads, head = plane % s.heads, left = block * s.columns;
    const int64_t right = std::min(left + s.columns, s.width);
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
          bias_places[p] = a.bias_rows[row * s.pooled_height + u] * a.bias.row_stride + a.bias.starts[v];
      load_row(row);
      for (int64_t column = left; column < right; column += kQueries<T>)
        compute(group(plane, row, left, column), row, column);
    }
  }

  Group<T, Element> group(int64_t plane, int64_t row, int64_t left, int64_t column) {
    const auto& s = a.s;
    const int64_t head = plane % s.heads, place = column - left;
    for (int64_t dx = 0; dx < s.window; ++dx)
      for (int64_t lane = 0; lane < kQueries<T>; ++lane) {
        const int64_t x = column + lane + dx - s.margin;
        outside[dx * kQueries<T> + lane] = 0 <= x && x < s.width ? T(0) : -std::numeric_limits<T>::infinity();
      }
    if (!a.cosine) {
      const int64_t image = plane / s.heads;
      load_planes(a.token_weights, image, head, row, column, kQueries<T>, s.width, token_weights.data());
    }
    return {
        s.channels,
        s.offsets,
        s.window,
        s.pooled,
        s.pooled_blocks,
        s.columns,
        s.halo_columns,
        queries.scaled.data() + place,
        queries.unit.data() + place,
        keys.around(row, s.height, place),
        values.around(row, s.height, place),
        outside.data(),
        a.bias.data.data() + head * a.bias.head_stride + column,
        bias_places.data(),
        a.keys.blocks(plane),
        a.values.rows(plane),
        a.window_bias + head * s.offsets,
        a.cosine ? a.tokens + head * s.channels * s.offsets : nullptr,
        a.cosine ? a.token_bias + head * s.offsets : nullptr,
        pooled.data(),
        window.data(),
        token_weights.data(),
        output.data(),
        logsumexp.data(),
        packed.data()};
  }

  const Attention<Data, T, Element>& a;
  QueryPlanes<Data, T, Element> queries;
  RowsOfPlanes<T> keys, values;
  Buffer<T> outside;
  std::vector<int64_t> bias_places;  // of a row's first query
  Buffer<T> pooled, window, token_weights, output, logsumexp;
  Buffer<Element> packed;
};

// First of `number` queries of a row in (B, heads, H, W).
template <typename T, typename Sizes>
T* in_plane(T* data, const Sizes& s, int64_t plane, int64_t row, int64_t column) {
  return data + (plane * s.height + row) * s.width + column;
}

template <typename Data, typename T, typename Element>
void forward(const CpuInputs& inputs, const Tensor& output, const Tensor& logsumexp) {
  const Attention<Data, T, Element> a(inputs);
  const auto& s = a.s;
  const Tokens<Data> target(output);
  T* logsumexp_data = logsumexp.mutable_data_ptr<T>();
  parallel_for(0, s.planes * s.row_blocks * s.column_blocks, 1, [&](int64_t begin, int64_t end) {
    Tile<Data, T, Element> tile(a);
    for (int64_t number = begin; number < end; ++number) {
      const int64_t plane = number / s.column_blocks / s.row_blocks, block = number % s.column_blocks;
      const int64_t top = number / s.column_blocks % s.row_blocks * kTileRows;
      const auto compute = [&](const Group<T, Element>& group, int64_t row, int64_t column) {
        attend(group);
        store_planes(tile.output.data(), target, plane / s.heads, plane % s.heads, row, column, s.width);
        std::copy_n(
            tile.logsumexp.data(), std::min(kQueries<T>, s.width - column),
            in_plane(logsumexp_data, s, plane, row, column));
      };
      tile.for_groups(plane, top, std::min(top + kTileRows, s.height), block, [](int64_t) {}, compute);
    }
  });
}

// Sums of a task for the gradients of the parameters of its head: of some rows over the lanes, and of all in float64,
// because they have a term for each query.
template <typename T>
struct ParameterSums {
  explicit ParameterSums(const SizesOf<T>& s)
      : s(s),
        totals(number(s)),
        embedding(s.channels * kQueries<T>),
        scale(kQueries<T>),
        window_bias(s.offsets * kQueries<T>),
        tokens(s.channels * s.offsets * kQueries<T>),
        token_bias(window_bias) {}

  // Adds the lanes to the totals, which have the order at the end of `backward`, and starts them anew.
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

  const SizesOf<T>& s;
  std::vector<double> totals;
  Buffer<T> embedding, scale, window_bias, tokens, token_bias;
};

template <typename Data, typename T, typename Element>
void backward(const Tensor& grad_output, const CpuInputs& inputs, const Tensor& logsumexp, CpuInputs& grad) {
  const Attention<Data, T, Element> a(inputs);
  const auto& s = a.s;
  const Tokens<const Data> grad_tokens_of(grad_output);
  const Tokens<Data> grad_query(grad.query), grad_key(grad.key), grad_value(grad.value);
  const Tokens<Data> grad_token_weights(grad.token_weights);
  const T* logsumexp_data = logsumexp.const_data_ptr<T>();

  // Gradients of the window logits and weights of the window values: rows (offsets, padded_width) for each row of a
  // plane.
  const int64_t window_row = s.offsets * s.padded_width;
  const Tensor window_data = zeros({2, s.planes, s.height, window_row}, logsumexp.options());
  T* grad_window_data = window_data.mutable_data_ptr<T>();
  T* factors_data = grad_window_data + s.planes * s.height * window_row;
  // Where tasks of one head add to the same sums, each has its own; they are added up in order at the end.
  const int64_t bias_size = s.heads * a.bias.head_stride, bias_blocks = a.bias.in_table ? s.column_blocks : 1;
  const Tensor bias_sums = zeros({bias_blocks, bias_size}, logsumexp.options());
  const int64_t sum_keys = round_up(s.pooled, kKeysOfSums<T, Element>);
  const int64_t row_channels = round_up(s.channels, kChannelsOfSums<T, Element>);
  const int64_t pooled_size = sum_keys * row_channels, block_size = s.planes * pooled_size;
  const Tensor pooled_sums = zeros({2, s.column_blocks, block_size}, logsumexp.options());
  const int64_t parameters = ParameterSums<T>::number(s);
  const Tensor parameter_sums = zeros({s.column_blocks, s.heads, parameters}, logsumexp.options().dtype(kDouble));
  T* bias_sums_data = bias_sums.mutable_data_ptr<T>();
  T* pooled_sums_data = pooled_sums.mutable_data_ptr<T>();
  double* parameter_data = parameter_sums.mutable_data_ptr<double>();

  parallel_for(0, s.heads * s.column_blocks, 1, [&](int64_t begin, int64_t end) {
    Tile<Data, T, Element> tile(a);
    Buffer<T> grad_planes(s.channels * s.columns), grad_window(s.offsets * kQueries<T>);
    Buffer<T> grad_pooled(tile.pooled), grad_tokens(grad_window);
    constexpr int64_t steps = kSteps<T, Element>;
    Buffer<Element> key_factors(kGroups * sum_keys * steps), value_factors(key_factors);
    Buffer<Element> key_rows(kGroups * steps * row_channels), value_rows(key_rows);
    Buffer<T> some_rows(2 * pooled_size);
    int64_t groups = 0;  // whose factors are kept
    const auto add_products = [&] {
      add_outer_products(
          OuterProducts<T, Element>{
              some_rows.data(), key_factors.data(), key_rows.data(), groups, sum_keys, row_channels});
      add_outer_products(
          OuterProducts<T, Element>{
              some_rows.data() + pooled_size, value_factors.data(), value_rows.data(), groups, sum_keys,
              row_channels});
      groups = 0;
    };
    for (int64_t number = begin; number < end; ++number) {
      const int64_t head = number / s.column_blocks, block = number % s.column_blocks, left = block * s.columns;
      ParameterSums<T> sums(s);
      for (int64_t image = 0; image < s.batch; ++image) {
        const int64_t plane = image * s.heads + head;
        T* pooled_key_sums = pooled_sums_data + block * block_size + plane * pooled_size;
        T* pooled_value_sums = pooled_key_sums + s.column_blocks * block_size;
        // Sums of all queries would lose digits: some rows are added up first.
        const auto add_up = [&] {
          add_products();
          sums.add_up();
          for (int64_t k = 0; k < pooled_size; ++k) {
            pooled_key_sums[k] += some_rows[k], pooled_value_sums[k] += some_rows[pooled_size + k];
            some_rows[k] = some_rows[pooled_size + k] = T(0);
          }
        };
        const auto load_row = [&](int64_t row) {
          if (row % kTileRows == 0) add_up();
          load_planes(grad_tokens_of, image, head, row, left, s.columns, s.width, grad_planes.data());
        };
        const auto compute = [&](const Group<T, Element>& group, int64_t row, int64_t column) {
          const int64_t place = column - left, valid = std::min(kQueries<T>, s.width - column);
          std::copy_n(in_plane(logsumexp_data, s, plane, row, column), valid, tile.logsumexp.data());
          std::fill(tile.logsumexp.begin() + valid, tile.logsumexp.end(), std::numeric_limits<T>::infinity());
          T* grad_bias =
              bias_sums_data + (a.bias.in_table ? block : 0) * bias_size + head * a.bias.head_stride + column;
          const int64_t window_place = (plane * s.height + row) * window_row + s.margin + column;
          differentiate(
              GradientGroup<T, Element>{
                  group, row_channels, grad_planes.data() + place, a.values.blocks(plane), a.keys.rows(plane),
                  grad_bias, grad_pooled.data(), grad_window.data(), grad_tokens.data(),
                  grad_window_data + window_place, factors_data + window_place, s.padded_width,
                  sums.window_bias.data(), sums.token_bias.data(), tile.output.data(),
                  &key_factors[groups * sum_keys * steps], &key_rows[groups * steps * row_channels],
                  &value_factors[groups * sum_keys * steps], &value_rows[groups * steps * row_channels]});
          if (++groups == kGroups) add_products();
          if (a.cosine)
            differentiate_query(
                QueryGradient<T>{
                    s.channels, s.offsets, s.columns, group.unit_query, tile.queries.inverse_norms.data() + place,
                    tile.queries.factors.data() + place, tile.queries.log_lengths.data() + place,
                    a.query_embedding + head * s.channels, group.tokens, grad_tokens.data(), tile.output.data(),
                    sums.embedding.data(), sums.scale.data(), sums.tokens.data()});
          else
            store_planes(grad_tokens.data(), grad_token_weights, image, head, row, column, s.width);
          store_planes(tile.output.data(), grad_query, image, head, row, column, s.width);
        };
        tile.for_groups(plane, 0, s.height, block, load_row, compute);
        add_up();
      }
      std::copy_n(sums.totals.data(), parameters, parameter_data + (block * s.heads + head) * parameters);
    }
  });

  const int64_t tiles = s.window ? s.planes * s.row_blocks * s.column_blocks : 0;
  parallel_for(0, tiles, 1, [&](int64_t begin, int64_t end) {
    QueryPlanes<Data, T, Element> loader(a, s.halo_columns);
    RowsOfPlanes<T> queries(s.window, s.channels, s.halo_columns), grad_outputs(queries);
    Buffer<T> keys(s.channels * kQueries<T>), inverse_norms(kQueries<T>), gradients[2];
    gradients[0].resize(keys.size()), gradients[1].resize(keys.size());
    std::vector<const T*> grad_window(s.window), factors(s.window);
    for (int64_t number = begin; number < end; ++number) {
      const int64_t plane = number / s.column_blocks / s.row_blocks, block = number % s.column_blocks;
      const int64_t top = number / s.column_blocks % s.row_blocks * kTileRows, left = block * s.columns;
      const int64_t image = plane / s.heads, head = plane % s.heads;
      int64_t next = std::max(top - s.margin, int64_t(0));
      for (int64_t row = top; row < std::min(top + kTileRows, s.height); ++row) {
        for (; next <= std::min(row + s.margin, s.height - 1); ++next) {
          loader.load(image, head, next, left - s.margin, queries[next], s.margin);
          load_planes(
              grad_tokens_of, image, head, next, left - s.margin, s.halo_columns, s.width, grad_outputs[next],
              s.margin);
        }
        for (int64_t column = left; column < std::min(left + s.columns, s.width); column += kQueries<T>) {
          for (int64_t dy = 0; dy < s.window; ++dy) {
            const int64_t place = (plane * s.height + row - s.margin + dy) * window_row + column;
            grad_window[dy] = grad_window_data + place, factors[dy] = factors_data + place;
          }
          gather_gradients(
              WindowGradients<T>{
                  s.channels, s.offsets, s.window, s.halo_columns, s.padded_width,
                  queries.around(row, s.height, column - left), grad_outputs.around(row, s.height, column - left),
                  grad_window.data(), factors.data(), gradients[0].data(), gradients[1].data()});
          if (a.cosine) {
            load_planes(a.key, image, head, row, column, kQueries<T>, s.width, keys.data());
            make_unit(UnitVectors<T>{keys.data(), inverse_norms.data(), s.channels, kQueries<T>});
            differentiate_unit(UnitGradient<T>{s.channels, keys.data(), inverse_norms.data(), gradients[0].data()});
          }
          store_planes(gradients[0].data(), grad_key, image, head, row, column, s.width);
          store_planes(gradients[1].data(), grad_value, image, head, row, column, s.width);
        }
      }
    }
  });

  const Tokens<Data> grad_pooled_key(grad.pooled_key), grad_pooled_value(grad.pooled_value);
  parallel_for(0, s.planes, 1, [&](int64_t begin, int64_t end) {
    Buffer<T> sum[2] = {Buffer<T>(s.channels), Buffer<T>(s.channels)};
    for (int64_t plane = begin; plane < end; ++plane)
      for (int64_t p = 0; p < s.pooled; ++p) {
        for (int64_t k = 0; k < 2; ++k) {
          std::fill(sum[k].begin(), sum[k].end(), T(0));
          for (int64_t block = 0; block < s.column_blocks; ++block) {
            const int64_t place = (k * s.column_blocks + block) * block_size + plane * pooled_size;
            for (int64_t c = 0; c < s.channels; ++c)
              sum[k][c] += pooled_sums_data[place + place_of_sum<T, Element>(p, c, row_channels)];
          }
        }
        const int64_t image = plane / s.heads, head = plane % s.heads, u = p % s.pooled_height,
                      v = p / s.pooled_height;
        if (a.cosine) {
          const T* unit = a.keys.token(plane, p);
          const T inverse = a.keys.inverse_norms[plane * s.padded_pooled + p];
          T along = dot(sum[0].data(), unit, s.channels);
          along = inverse < T(0.99999 / kSmallestNorm) ? along : T(0);
          for (int64_t c = 0; c < s.channels; ++c) sum[0][c] = inverse * (sum[0][c] - unit[c] * along);
        }
        Data *key = grad_pooled_key.at(image, head, u, v), *value = grad_pooled_value.at(image, head, u, v);
        for (int64_t c = 0; c < s.channels; ++c)
          key[c] = static_cast<Data>(sum[0][c]), value[c] = static_cast<Data>(sum[1][c]);
      }
  });

  a.bias.reduce(bias_sums_data, bias_blocks, s, grad.pooled_bias.mutable_data_ptr<T>());
  const Tensor sums = parameter_sums.sum({0}).to(logsumexp.scalar_type());
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

// Calls function(Data(), T(), Element()) with the dtype of the tokens, that of the arithmetic, and what products with
// pooled tokens are of.
template <typename Function>
void for_dtypes(const Tensor& tokens, const Function& function) {
#if BIOATTN_BFLOAT16
  function(c10::BFloat16(), float(), Pair());
#else
  dispatch<float, double, c10::Half, c10::BFloat16>(tokens.scalar_type(), [&](auto zero) {
    using T = std::conditional_t<std::is_same_v<decltype(zero), double>, double, float>;
    function(zero, T(), T());
  });
#endif
}

}  // namespace

Forward forward(const CpuInputs& inputs) {
  // The only inputs whose values, not only their shape, decide where memory is read and written.
  check_indices("pooled_bias_rows", inputs.pooled_bias_rows, inputs.pooled_bias.size(1), "rows of pooled_bias");
  check_indices(
      "pooled_bias_columns", inputs.pooled_bias_columns, inputs.pooled_bias.size(2), "columns of pooled_bias");
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
    backward<decltype(data), decltype(number), decltype(element)>(grad_output, inputs, logsumexp, gradients);
  });
}

}  // namespace bioattn_mm::BIOATTN_ISA::aggregated_attention
