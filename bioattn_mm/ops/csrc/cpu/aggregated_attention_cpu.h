// Aggregated attention on the CPU: loops over groups of queries, and copies between tokens and planes. Every sum
// belongs to one task, or is added up in order: results do not depend on the threads.
#pragma once

#include "aggregated_attention_lanes.h"

namespace bioattn_mm::BIOATTN_ISA::aggregated_attention {
namespace {

constexpr int64_t kTileColumns = 32, kTileRows = 16;

template <typename T>
struct SizesOf : Sizes<int64_t> {
  explicit SizesOf(const CpuInputs& inputs) : Sizes<int64_t>(inputs) {}

  int64_t margin = window / 2, batch_heads = batch * heads;
  int64_t padded_pooled = round_up(pooled, kPadded), padded_channels = round_up(channels, kPadded);
  int64_t columns = std::min(round_up(width, kQueries<T>), kTileColumns);  // of a tile
  int64_t slices = std::min(batch, int64_t(4));  // parts of the batch that are tasks, with sums, of their own
  int64_t column_blocks = divide_up(width, columns), row_blocks = divide_up(height, kTileRows);  // numbers of tiles
  int64_t halo_columns = round_up(columns + 2 * margin, kLanes<T>);  // columns of a tile with the windows around it
  int64_t padded_width = column_blocks * columns + 2 * margin;       // columns of the image with a margin
};

// The biases of a pooled key for neighbouring queries, side by side: in a copy of the table, if pairs share its
// elements and the next query has the next one; else in an array (heads, blocks of columns, R, Pw, columns of a
// block), of which a task reads rows from front to back.
template <typename T>
struct PooledBias {
  PooledBias(const CpuInputs& inputs, const SizesOf<T>& s)
      : s(s),
        rows(inputs.pooled_bias.size(1)),
        table_columns(inputs.pooled_bias.size(2)),
        starts(s.pooled_width),
        index(inputs.pooled_bias_columns.template const_data_ptr<int64_t>()) {
    in_table = table_columns < s.width * s.pooled_width;
    for (int64_t k = s.pooled_width; k < s.width * s.pooled_width; ++k)
      in_table = in_table && index[k] == index[k - s.pooled_width] + 1;
    for (int64_t v = 0; v < s.pooled_width; ++v) starts[v] = in_table ? index[v] : v * s.columns;
    row_stride = in_table ? table_columns : s.pooled_width * s.columns;
    // Groups at the right edge read, and write gradients, up to a vector beyond the last row: each head is padded.
    head_stride = in_table ? rows * row_stride + kQueries<T> : rows * row_stride * s.column_blocks;
    const T* table = inputs.pooled_bias.template const_data_ptr<T>();
    data.assign(s.heads * head_stride, T(0));
    if (in_table) {
      for (int64_t head = 0; head < s.heads; ++head)
        std::copy_n(table + head * rows * row_stride, rows * row_stride, data.data() + head * head_stride);
      return;
    }
    parallel_for(0, s.heads * rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for_elements(row, [&](int64_t place, int64_t column) { data[place] = table[row * table_columns + column]; });
    });
  }

  const T* head(int64_t head) const { return data.data() + head * head_stride; }

  // The index, in a head, at which the block of columns from `left` on begins.
  int64_t block(int64_t left) const { return in_table ? left : left * rows * s.pooled_width; }
  // The index at which a row begins, where rows are counted through all heads.
  int64_t start_of(int64_t row) const { return row / rows * head_stride + row % rows * row_stride; }

  // Calls function(index in the array, column of the table) for the elements of a row.
  template <typename Function>
  void for_elements(int64_t row, const Function& function) const {
    for (int64_t left = 0; left < s.width; left += s.columns)
      for (int64_t v = 0; v < s.pooled_width; ++v)
        for (int64_t j = left; j < std::min(left + s.columns, s.width); ++j)
          function(start_of(row) + block(left) + starts[v] + j - left, index[j * s.pooled_width + v]);
  }

  // Adds up gradients with the layout of `data`, one for each block of columns.
  void reduce(const T* gradients, int64_t blocks, T* grad_table) const {
    parallel_for(0, s.heads * rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* target = grad_table + row * table_columns;
        std::fill_n(target, table_columns, T(0));
        for (int64_t block = 0; block < blocks; ++block) {
          const T* source = gradients + block * s.heads * head_stride;
          if (in_table) {
            for (int64_t column = 0; column < table_columns; ++column)
              target[column] += source[start_of(row) + column];
          } else {
            for_elements(row, [&](int64_t place, int64_t column) { target[column] += source[place]; });
          }
        }
      }
    });
  }

  const SizesOf<T>& s;
  int64_t rows, table_columns, row_stride, head_stride;
  bool in_table;
  std::vector<int64_t> starts;  // the index for each pooled column and the first query of a row
  const int64_t* index;
  Buffer<T> data;
};

// The biases of a row of queries, in a block of columns, where they are sums of several rows of the table: (pooled,
// columns). The same struct holds their gradients.
template <typename T>
struct SummedBias {
  SummedBias(const CpuInputs& inputs, const PooledBias<T>& bias, const SizesOf<T>& s)
      : bias(bias),
        s(s),
        rows(DataOf{inputs.pooled_bias_rows}),
        weights(DataOf{inputs.pooled_bias_weights}),
        number(inputs.pooled_bias_rows.size(2)),
        sums(number > 1 ? s.pooled * s.columns : 0),
        summands(number) {}

  // Computes the sums from the table of a head.
  void load(const T* table, int64_t row, int64_t left) {
    for_keys(row, left, [&](int64_t p, const Summand<T>* first, int64_t count, int64_t offset, int64_t lanes) {
      sum_biases(sums.data() + p * s.columns, table + offset, first, count, lanes);
    });
  }

  // Adds the gradients to those of the table of a head.
  void add_to(T* grad_table, int64_t row, int64_t left) {
    for_keys(row, left, [&](int64_t p, const Summand<T>* first, int64_t count, int64_t offset, int64_t lanes) {
      add_to_summands(grad_table + offset, sums.data() + p * s.columns, first, count, lanes);
    });
  }

  // Calls function(p, its summands, their number, their offset, lanes) for each pooled key p.
  template <typename Function>
  void for_keys(int64_t row, int64_t left, const Function& function) {
    const int64_t lanes = std::min(s.columns, round_up(s.width - left, kQueries<T>));
    for (int64_t u = 0; u < s.pooled_height; ++u) {
      const int64_t pair = row * s.pooled_height + u;
      int64_t count = 0;  // without those of weight 0: an axis that keeps its size has one row
      T rest = 1;
      for (int64_t k = 0; k < number; ++k) {
        const T weight = k < number - 1 ? weights[pair * (number - 1) + k] : rest;
        if (weight != 0) summands[count++] = {rows[pair * number + k] * bias.row_stride, weight};
        rest -= weight;
      }
      for (int64_t v = 0; v < s.pooled_width; ++v)
        function(v * s.pooled_height + u, summands.data(), count, bias.starts[v] + bias.block(left), lanes);
    }
  }

  const PooledBias<T>& bias;
  const SizesOf<T>& s;
  const int64_t* rows;
  const T* weights;
  int64_t number;  // summands of a bias
  Buffer<T> sums;
  std::vector<Summand<T>> summands;  // of a pair of rows
};

// Copies of the pooled keys or values of all heads, by columns of the pooled grid, in the layouts of products.
template <typename T, typename Element>
struct PooledTokens {
  static constexpr bool kRowsAreTokens = std::is_same_v<Element, T>;

  explicit PooledTokens(const SizesOf<T>& s) : s(s) {}

  // Copies the tokens of a head of an image; `unit` makes them unit vectors.
  template <typename Data>
  void load(const Data& source, int64_t batch_head, bool unit) {
    T *token = tokens.data() + batch_head * size, *inverse_norm = inverse_norms.data() + batch_head * s.padded_pooled;
    for (int64_t v = 0; v < s.pooled_width; ++v)
      for (int64_t u = 0; u < s.pooled_height; ++u, token += row_size, ++inverse_norm) {
        const auto* data = source.at(batch_head, u, v);
        for (int64_t c = 0; c < s.channels; ++c) token[c] = static_cast<T>(data[c]);
        if (!unit) continue;
        *inverse_norm = 1 / std::max(std::sqrt(dot(token, token, s.channels)), T(kSmallestNorm));
        for (int64_t c = 0; c < s.channels; ++c) token[c] *= *inverse_norm;
      }
    lay_out(
        tokens.data() + batch_head * size, row_elements.data() + (kRowsAreTokens ? 0 : batch_head * size),
        block_elements.data() + batch_head * blocks_size, s.padded_pooled, s.channels, row_size);
  }

  const T* token(int64_t batch_head, int64_t p) const { return tokens.data() + batch_head * size + p * row_size; }
  const Element* rows(int64_t batch_head) const {
    if constexpr (kRowsAreTokens)
      return token(batch_head, 0);
    else
      return row_elements.data() + batch_head * size;
  }
  const Element* blocks(int64_t batch_head) const { return block_elements.data() + batch_head * blocks_size; }

  const SizesOf<T>& s;
  int64_t row_size = s.padded_channels;
  int64_t blocks_size = s.padded_pooled * (kTiles<Element> ? row_size / 2 : divide_up(s.channels, kPacked<Element>));
  int64_t size = s.padded_pooled * row_size + 2 * kQueries<T>;
  Buffer<T> tokens = Buffer<T>(s.batch_heads * size), inverse_norms = Buffer<T>(s.batch_heads * s.padded_pooled);
  Buffer<Element> row_elements = Buffer<Element>(kRowsAreTokens ? 0 : s.batch_heads * size);
  Buffer<Element> block_elements = Buffer<Element>(s.batch_heads * blocks_size);
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
  explicit Tokens(const Tensor& tensor) : data(DataOf{tensor}) {
    if (!data) return;
    image_stride = tensor.stride(0), row_stride = tensor.stride(1), column_stride = tensor.stride(2);
    heads = tensor.size(3), size = tensor.size(4);
  }

  // The token of a head, which are counted through all images.
  Data* at(int64_t batch_head, int64_t row, int64_t column) const {
    return data + batch_head / heads * image_stride + batch_head % heads * size + row * row_stride +
           column * column_stride;
  }

  Data* data;
  int64_t image_stride = 0, row_stride = 0, column_stride = 0, heads = 1, size = 0;
};

// Whether tokens are transposed in registers.
template <typename Data>
constexpr bool kIsTransposed = std::is_same_v<Data, float> || std::is_same_v<Data, c10::BFloat16>;
template <typename Data>
constexpr bool kIsTransposed<const Data> = kIsTransposed<Data>;

// Copies `number` columns of a row from `first` on to planes, with zeros outside of the image. The row below is
// prefetched: to wait for it would take most of the time.
template <typename Data, typename T>
void load_planes(
    const Tokens<Data>& tokens, int64_t batch_head, int64_t row, int64_t first, int64_t number, int64_t width,
    T* planes) {
  const int64_t left = std::clamp(-first, int64_t(0), number), right = std::clamp(width - first, left, number);
  for (int64_t c = 0; c < tokens.size && right - left < number; ++c) {
    std::fill(planes + c * number, planes + c * number + left, T(0));
    std::fill(planes + c * number + right, planes + (c + 1) * number, T(0));
  }
  int64_t lane = left;
  const Data* source = tokens.at(batch_head, row, first + lane);
  if constexpr (kIsTransposed<Data>) {
    constexpr int64_t lanes = kLanes<float>;
    for (; tokens.size >= lanes && lane + lanes <= right; lane += lanes, source += lanes * tokens.column_stride) {
      for (int64_t i = 0; i < lanes; ++i) {
        __builtin_prefetch(source + tokens.row_stride + i * tokens.column_stride);
        __builtin_prefetch(source + tokens.row_stride + i * tokens.column_stride + tokens.size - 1);
      }
      transpose_tokens(source, tokens.column_stride, 1, planes + lane, number, number, tokens.size);
    }
  }
  for (; lane < right; ++lane, source += tokens.column_stride) {
    const Data* below = source + tokens.row_stride;
    __builtin_prefetch(below);
    __builtin_prefetch(below + tokens.size / 2);
    __builtin_prefetch(below + tokens.size - 1);
    for (int64_t c = 0; c < tokens.size; ++c) planes[c * number + lane] = static_cast<T>(source[c]);
  }
}

template <typename Data, typename T>
void store_planes(
    const T* planes, const Tokens<Data>& tokens, int64_t batch_head, int64_t row, int64_t first, int64_t width) {
  const int64_t number = std::min(kQueries<T>, width - first);
  int64_t lane = 0;
  Data* target = tokens.at(batch_head, row, first);
  if constexpr (kIsTransposed<Data>) {
    constexpr int64_t lanes = kLanes<float>;
    for (; tokens.size >= lanes && lane + lanes <= number; lane += lanes, target += lanes * tokens.column_stride)
      transpose_tokens(planes + lane, kQueries<T>, kQueries<T>, target, tokens.column_stride, 1, tokens.size);
  }
  for (; lane < number; ++lane, target += tokens.column_stride)
    for (int64_t c = 0; c < tokens.size; ++c) target[c] = static_cast<Data>(planes[c * kQueries<T> + lane]);
}

// The inputs of both passes: pointers, and copies in the layouts that the kernels read.
template <typename Data, typename T, typename Element>
struct Attention {
  explicit Attention(const CpuInputs& inputs) : inputs(inputs) {
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

  HeadParameters<T> parameters_of(int64_t head) const {
    const T* of_window = window_bias + head * s.offsets;
    if (!cosine) return {of_window, nullptr, nullptr, nullptr};
    return {
        of_window, tokens + head * s.channels * s.offsets, token_bias + head * s.offsets,
        query_embedding + head * s.channels};
  }

  // How many of the `length` rows, or columns, of the image are in the window around index i.
  int64_t inside(int64_t i, int64_t length) const {
    return std::min(i + s.margin, length - 1) - std::max(i - s.margin, int64_t(0)) + 1;
  }

  const CpuInputs& inputs;
  const SizesOf<T> s{inputs};
  const bool cosine = inputs.scale.defined();  // whether queries and keys are normalised here, and queries scaled
  const T query_scale = static_cast<T>(inputs.query_scale);
  const Tokens<const Data> query{inputs.query}, key{inputs.key}, value{inputs.value}, pooled_key{inputs.pooled_key},
      pooled_value{inputs.pooled_value}, token_weights{inputs.token_weights};
  const PooledBias<T> bias{inputs, s};
  const int64_t* bias_rows = DataOf{inputs.pooled_bias_rows};
  const bool sums_rows = inputs.pooled_bias_rows.size(2) > 1;  // whether biases are sums of several rows
  const T *window_bias = DataOf{inputs.window_bias}, *scale = DataOf{inputs.scale};
  const T *query_embedding = DataOf{inputs.query_embedding}, *tokens = DataOf{inputs.tokens};
  const T* token_bias = DataOf{inputs.token_bias};
  PooledTokens<T, Element> keys{s}, values{s};
  // The logarithms of numbers of keys, by the rows and columns of a query's window in the image.
  Buffer<T> log_numbers = Buffer<T>((s.window + 1) * (s.window + 1));
};

// The queries of some columns of a row, in planes.
template <typename Data, typename T, typename Element>
struct QueryPlanes {
  QueryPlanes(const Attention<Data, T, Element>& a, int64_t stride) : a(a), stride(stride) {}

  void load(int64_t batch_head, int64_t row, int64_t first, T* target) {
    if (!a.cosine) {
      load_planes(a.query, batch_head, row, first, stride, a.s.width, target);
      return scale_to(target, target, a.s.channels * stride, a.query_scale);
    }
    load_planes(a.query, batch_head, row, first, stride, a.s.width, unit.data());
    const int64_t head = batch_head % a.s.heads;
    make_unit(unit.data(), inverse_norms.data(), a.s.channels, stride);
    const T* log_numbers = a.log_numbers.data() + a.inside(row, a.s.height) * (a.s.window + 1);
    for (int64_t lane = 0; lane < stride; ++lane) {
      const int64_t column = first + lane;
      const bool in_image = 0 <= column && column < a.s.width;
      log_lengths[lane] = in_image ? log_numbers[a.inside(column, a.s.width)] : T(0);
      factors[lane] = a.scale[head] * log_lengths[lane];
    }
    const T* embedding = a.query_embedding + head * a.s.channels;
    scale_queries(target, unit.data(), embedding, factors.data(), a.s.channels, stride);
  }

  const Attention<Data, T, Element>& a;
  int64_t stride;
  Buffer<T> unit = Buffer<T>(a.s.channels * stride), scaled = unit;                                   // planes
  Buffer<T> inverse_norms = Buffer<T>(stride), factors = inverse_norms, log_lengths = inverse_norms;  // (stride)
};

// A task's buffers, and its loops over the groups of a tile: some rows of one block of columns.
template <typename Data, typename T, typename Element>
struct Tile {
  explicit Tile(const Attention<Data, T, Element>& a) : a(a) {}

  // Calls load_row(row) for each row, compute(group, row, column) for each group of its queries, and finish_row(row).
  template <typename LoadRow, typename Compute, typename FinishRow>
  void for_groups(
      int64_t batch_head, int64_t top, int64_t bottom, int64_t block, const LoadRow& load_row, const Compute& compute,
      const FinishRow& finish_row) {
    const auto& s = a.s;
    const int64_t left = block * s.columns, right = std::min(left + s.columns, s.width);
    int64_t next = s.window ? std::max(top - s.margin, int64_t(0)) : s.height;
    for (int64_t row = top; row < bottom; ++row) {
      for (; next <= std::min(row + s.margin, s.height - 1); ++next) {
        load_planes(a.key, batch_head, next, left - s.margin, s.halo_columns, s.width, keys[next]);
        if (a.cosine) make_unit(keys[next], keys.inverse_norms.data(), s.channels, s.halo_columns);
        load_planes(a.value, batch_head, next, left - s.margin, s.halo_columns, s.width, values[next]);
      }
      queries.load(batch_head, row, left, queries.scaled.data());
      if (a.sums_rows) summed.load(a.bias.head(batch_head % s.heads), row, left);
      for (int64_t v = 0, p = 0; v < s.pooled_width; ++v)
        for (int64_t u = 0; u < s.pooled_height; ++u, ++p)
          bias_indices[p] = a.sums_rows ? p * s.columns
                                        : a.bias_rows[row * s.pooled_height + u] * a.bias.row_stride +
                                              a.bias.starts[v] + a.bias.block(left);
      load_row(row);
      for (int64_t column = left; column < right; column += kQueries<T>)
        compute(group(batch_head, row, left, column), row, column);
      finish_row(row);
    }
  }

  Group<T, Element> group(int64_t batch_head, int64_t row, int64_t left, int64_t column) {
    const auto& s = a.s;
    const int64_t head = batch_head % s.heads, first = column - left;
    for (int64_t dx = 0; dx < s.window; ++dx)
      for (int64_t lane = 0; lane < kQueries<T>; ++lane) {
        const int64_t x = column + lane + dx - s.margin;
        outside[dx * kQueries<T> + lane] = 0 <= x && x < s.width ? T(0) : -std::numeric_limits<T>::infinity();
      }
    if (!a.cosine) load_planes(a.token_weights, batch_head, row, column, kQueries<T>, s.width, token_weights.data());
    Group<T, Element> g;
    g.channels = s.channels, g.window = s.window, g.offsets = s.offsets;
    g.pooled_keys = s.pooled, g.padded_pooled = s.padded_pooled;
    g.queries = {
        queries.scaled.data() + first,        queries.unit.data() + first,    s.columns,
        queries.inverse_norms.data() + first, queries.factors.data() + first, queries.log_lengths.data() + first};
    g.neighbours = {
        keys.around(row, s.height, first), values.around(row, s.height, first), s.halo_columns, outside.data()};
    g.key_blocks = a.keys.blocks(batch_head), g.key_rows = a.keys.rows(batch_head);
    g.value_blocks = a.values.blocks(batch_head), g.value_rows = a.values.rows(batch_head);
    g.pooled_bias = (a.sums_rows ? summed.sums.data() : a.bias.head(head)) + first,
    g.bias_indices = bias_indices.data();
    g.parameters = a.parameters_of(head);
    g.pooled_weights = pooled.data(), g.window_weights = window.data(), g.token_weights = token_weights.data();
    g.output = output.data(), g.logsumexp = logsumexp.data(), g.packed = packed.data();
    return g;
  }

  const Attention<Data, T, Element>& a;
#if BIOATTN_AMX
  TileConfiguration configuration;
#endif
  QueryPlanes<Data, T, Element> queries = QueryPlanes(a, a.s.columns);
  RowsOfPlanes<T> keys = RowsOfPlanes<T>(a.s.window, a.s.channels, a.s.halo_columns), values = keys;
  Buffer<T> outside = Buffer<T>(a.s.window * kQueries<T>);
  SummedBias<T> summed = SummedBias<T>(a.inputs, a.bias, a.s);
  std::vector<int64_t> bias_indices = std::vector<int64_t>(a.s.pooled);  // the indices for a block's first query
  Buffer<T> pooled = Buffer<T>(a.s.padded_pooled * kQueries<T>);
  Buffer<T> window = Buffer<T>(a.s.offsets * kQueries<T>), token_weights = window;
  Buffer<T> output = Buffer<T>(a.s.padded_channels * kQueries<T>), logsumexp = Buffer<T>(kQueries<T>);
  Buffer<Element> packed = Buffer<Element>(std::max(a.s.padded_pooled, 2 * a.s.padded_channels) * kQueries<T>);
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
        store_planes(tile.output.data(), target, batch_head, row, column, s.width);
        std::copy_n(
            tile.logsumexp.data(), std::min(kQueries<T>, s.width - column),
            at_query(logsumexp_data, s, batch_head, row, column));
      };
      tile.for_groups(
          batch_head, top, std::min(top + kTileRows, s.height), block, [](int64_t) {}, compute, [](int64_t) {});
    }
  });
}

// A task's sums for the gradients of its head's parameters: sums of some rows for each lane, and totals in float64,
// in the order of `BackwardPass::finish_parameters`.
template <typename T>
struct ParameterSums {
  explicit ParameterSums(const SizesOf<T>& s) : s(s), totals(number(s)), all(number(s) * kQueries<T>) {}

  // Adds the lanes to the totals, and starts them anew.
  void add_up() {
    for (size_t k = 0; k < totals.size(); ++k) {
      double sum = 0;
      for (int64_t lane = 0; lane < kQueries<T>; ++lane) sum += all[k * kQueries<T> + lane];
      totals[k] += sum;
    }
    std::fill(all.begin(), all.end(), T(0));
  }
  LaneSums<T> lanes() {
    T *scale = all.data() + s.offsets * kQueries<T>, *embedding = scale + kQueries<T>;
    T *tokens = embedding + s.channels * kQueries<T>, *token_bias = tokens + s.channels * s.offsets * kQueries<T>;
    return {all.data(), scale, embedding, tokens, token_bias};
  }
  static int64_t number(const SizesOf<T>& s) {
    return s.offsets + 1 + s.channels + s.channels * s.offsets + s.offsets;
  }

  const SizesOf<T>& s;
  std::vector<double> totals;
  Buffer<T> all;
};

// A task's sums for the gradients of its head's pooled keys and values, and the factors of the last kGroups groups.
template <typename T, typename Element>
struct PooledSums {
  explicit PooledSums(const SizesOf<T>& s) : s(s) {}

  // The elements of the sums for the keys, or the values, of one head.
  static int64_t size(const SizesOf<T>& s) {
    return round_up(s.pooled, kKeysOfSums<T, Element>) * round_up(s.channels, kChannelsOfSums<T, Element>);
  }

  // The memory for the factors of the next group. When they are written, `count_group` follows.
  OuterFactors<Element> of_next_group() {
    const int64_t step = groups * kSteps<T, Element>, row = step * row_channels;
    const int64_t factor = kTiles<Element> ? step : step * keys;
    return {
        of_keys.data() + factor, of_values.data() + factor, queries.data() + row, grad_outputs.data() + row,
        row_channels};
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

  const SizesOf<T>& s;
  const int64_t keys = round_up(s.pooled, kKeysOfSums<T, Element>);
  const int64_t row_channels = round_up(s.channels, kChannelsOfSums<T, Element>);
  int64_t groups = 0;  // groups whose factors are kept
  Buffer<Element> of_keys = Buffer<Element>(kGroups * keys * kSteps<T, Element>), of_values = of_keys;
  Buffer<Element> queries = Buffer<Element>(kGroups * kSteps<T, Element> * row_channels), grad_outputs = queries;
  Buffer<T> key_sums = Buffer<T>(size(s)), value_sums = key_sums;
};

// The backward pass. The pass over the queries writes the gradients of the window's logits, and sums for the pooled
// tokens, of which each task has its own; the other two steps finish them.
template <typename Data, typename T, typename Element>
struct BackwardPass {
  BackwardPass(const Tensor& grad_output, const CpuInputs& inputs, const Tensor& logsumexp, CpuInputs& grad)
      : a(inputs),
        grad(grad),
        grad_output(grad_output),
        grad_query(grad.query),
        grad_token_weights(grad.token_weights),
        logsumexp(logsumexp.const_data_ptr<T>()),
        floats(logsumexp.options()) {}

  void run() {
    differentiate_queries();
    gather_window_gradients();
    finish_pooled_gradients();
    a.bias.reduce(bias_sums_data, bias_blocks, grad.pooled_bias.mutable_data_ptr<T>());
    finish_parameters();
  }

 private:
  // A task has one head and one block of columns in the images of a slice.
  void differentiate_queries() const {
    double* totals = parameter_sums.template mutable_data_ptr<double>();
    parallel_for(0, s.slices * s.column_blocks * s.heads, 1, [&](int64_t begin, int64_t end) {
      QueryTask task(*this);
      for (int64_t number = begin; number < end; ++number) {
        const int64_t slice = number / s.heads / s.column_blocks, block = number / s.heads % s.column_blocks;
        const int64_t head = number % s.heads, last = (slice + 1) * s.batch / s.slices;
        ParameterSums<T> sums(s);
        task.bias_sums = bias_sums_of(slice, block, head);
        for (int64_t image = slice * s.batch / s.slices; image < last; ++image) task.run(image, head, block, sums);
        std::copy(sums.totals.begin(), sums.totals.end(), totals + number * sums.totals.size());
      }
    });
  }

  struct QueryTask {
    explicit QueryTask(const BackwardPass& pass) : pass(pass) {}

    void run(int64_t image, int64_t head, int64_t block, ParameterSums<T>& sums) {
      const auto& s = pass.s;
      const int64_t batch_head = image * s.heads + head, left = block * s.columns;
      const auto add_up = [&] {
        pooled_sums.add_to(pass.pooled_sums_of(0, block, batch_head), pass.pooled_sums_of(1, block, batch_head));
        sums.add_up();
      };
      const auto load_row = [&](int64_t row) {
        if (row % kTileRows == 0) add_up();
        load_planes(pass.grad_output, batch_head, row, left, s.columns, s.width, grad_output.data());
        std::fill(summed.sums.begin(), summed.sums.end(), T(0));
      };
      const auto compute = [&](const Group<T, Element>& group, int64_t row, int64_t column) {
        differentiate_group(group, batch_head, row, column, block, sums);
      };
      const auto finish_row = [&](int64_t row) {
        if (pass.a.sums_rows) summed.add_to(bias_sums, row, left);
      };
      tile.for_groups(batch_head, 0, s.height, block, load_row, compute, finish_row);
      add_up();
    }

    void differentiate_group(
        const Group<T, Element>& forward, int64_t batch_head, int64_t row, int64_t column, int64_t block,
        ParameterSums<T>& sums) {
      const auto& s = pass.s;
      const int64_t first = column - block * s.columns, valid = std::min(kQueries<T>, s.width - column);
      std::copy_n(at_query(pass.logsumexp, s, batch_head, row, column), valid, tile.logsumexp.data());
      std::fill(tile.logsumexp.begin() + valid, tile.logsumexp.end(), std::numeric_limits<T>::infinity());

      const int64_t kept = (batch_head * s.height + row) * pass.window_row + s.margin + column;
      GradientGroup<T, Element> group;
      group.forward = forward, group.grad_output = grad_output.data() + first, group.grad_query = tile.output.data();
      group.grad_pooled_logits = grad_pooled.data(), group.grad_window_logits = grad_window.data();
      group.grad_token_weights = grad_token_weights.data(),
      group.grad_pooled_bias = (pass.a.sums_rows ? summed.sums.data() : bias_sums) + first;
      group.kept_logits = pass.grad_logits + kept, group.kept_weights = pass.value_weights + kept;
      group.kept_stride = s.padded_width, group.sums = sums.lanes(), group.outer = pooled_sums.of_next_group();
      differentiate(group);
      pooled_sums.count_group();
      if (pass.a.cosine) {
        differentiate_scaling(group);
      } else {
        scale_to(tile.output.data(), tile.output.data(), s.channels * kQueries<T>, pass.a.query_scale);
        store_planes(grad_token_weights.data(), pass.grad_token_weights, batch_head, row, column, s.width);
      }
      store_planes(tile.output.data(), pass.grad_query, batch_head, row, column, s.width);
    }

    const BackwardPass& pass;
    T* bias_sums = nullptr;  // of the head, as in PooledBias::data
    Tile<Data, T, Element> tile = Tile(pass.a);
    SummedBias<T> summed = tile.summed;  // the gradients
    PooledSums<T, Element> pooled_sums = PooledSums<T, Element>(pass.s);
    Buffer<T> grad_output = Buffer<T>(pass.s.channels * pass.s.columns);  // planes
    Buffer<T> grad_window = tile.window, grad_token_weights = tile.window, grad_pooled = tile.pooled;
  };

  // The gradients of the keys and values in windows: a task gathers those of some rows of one block of columns.
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
        int64_t next = std::max(top - s.margin, int64_t(0));
        for (int64_t row = top; row < std::min(top + kTileRows, s.height); ++row) {
          for (; next <= std::min(row + s.margin, s.height - 1); ++next) {
            loader.load(batch_head, next, left - s.margin, queries[next]);
            load_planes(grad_output, batch_head, next, left - s.margin, s.halo_columns, s.width, grad_outputs[next]);
          }
          for (int64_t column = left; column < std::min(left + s.columns, s.width); column += kQueries<T>) {
            for (int64_t dy = 0; dy < s.window; ++dy) {
              const int64_t kept = (batch_head * s.height + row - s.margin + dy) * window_row + column;
              logits[dy] = grad_logits + kept, weights[dy] = value_weights + kept;
            }
            gather_gradients(
                WindowGradients<T>{
                    s.channels, s.window, s.offsets, queries.around(row, s.height, column - left),
                    grad_outputs.around(row, s.height, column - left), s.halo_columns, logits.data(), weights.data(),
                    s.padded_width, key_gradient.data(), value_gradient.data()});
            if (a.cosine) {
              load_planes(a.key, batch_head, row, column, kQueries<T>, s.width, keys.data());
              make_unit(keys.data(), inverse_norms.data(), s.channels, kQueries<T>);
              differentiate_norm(key_gradient.data(), keys.data(), kQueries<T>, inverse_norms.data(), s.channels);
            }
            store_planes(key_gradient.data(), grad_key, batch_head, row, column, s.width);
            store_planes(value_gradient.data(), grad_value, batch_head, row, column, s.width);
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
          const int64_t u = p % s.pooled_height, v = p / s.pooled_height;
          Data *key = grad_key.at(batch_head, u, v), *value = grad_value.at(batch_head, u, v);
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
    const double* const sums = parameter_sums.template const_data_ptr<double>();
    const int64_t tasks = parameter_sums.size(0), all = parameter_sums.size(2);
    int64_t first = 0;
    const auto next = [&](int64_t number, Span sizes) {
      const Tensor gradient = empty(sizes, floats);
      T* target = DataOf{gradient};
      for (int64_t k = 0; k < s.heads * number; ++k) {
        double sum = 0;
        for (int64_t task = 0; task < tasks; ++task)
          sum += sums[(task * s.heads + k / number) * all + first + k % number];
        target[k] = static_cast<T>(sum);
      }
      first += number;
      return gradient;
    };
    grad.window_bias = next(s.offsets, {s.heads, s.offsets});
    if (!a.cosine) return;
    grad.scale = next(1, {s.heads});
    grad.query_embedding = next(s.channels, {s.heads, s.channels});
    grad.tokens = next(s.channels * s.offsets, {s.heads, s.channels, s.offsets});
    grad.token_bias = next(s.offsets, {s.heads, s.offsets});
  }

  T* bias_sums_of(int64_t slice, int64_t block, int64_t head) const {
    const int64_t number = a.bias.in_table ? slice * s.column_blocks + block : slice;
    return bias_sums_data + (number * s.heads + head) * a.bias.head_stride;
  }
  // The sums of a head for the gradients of its pooled keys, `of` = 0, or values, `of` = 1.
  T* pooled_sums_of(int64_t of, int64_t block, int64_t batch_head) const {
    return pooled_sums_data + ((of * s.column_blocks + block) * s.batch_heads + batch_head) * pooled_size;
  }

  const Attention<Data, T, Element> a;
  const SizesOf<T>& s = a.s;
  CpuInputs& grad;
  const Tokens<const Data> grad_output;
  const Tokens<Data> grad_query, grad_token_weights;
  const T* logsumexp;
  const Options floats;
  // The gradients of the window's logits, and the weights of its values: rows (k * k, padded_width).
  const int64_t window_row = s.offsets * s.padded_width;
  const Tensor window_data = zeroed({2, s.batch_heads, s.height, window_row}, floats);
  T* const grad_logits = window_data.mutable_data_ptr<T>();
  T* const value_weights = grad_logits + s.batch_heads * s.height * window_row;
  const int64_t bias_blocks = s.slices * (a.bias.in_table ? s.column_blocks : 1);
  const Tensor bias_sums = zeroed({bias_blocks, s.heads * a.bias.head_stride}, floats);
  T* const bias_sums_data = bias_sums.mutable_data_ptr<T>();
  const int64_t pooled_size = PooledSums<T, Element>::size(s);
  const Tensor pooled_sums = zeroed({2, s.column_blocks, s.batch_heads, pooled_size}, floats);
  T* const pooled_sums_data = pooled_sums.mutable_data_ptr<T>();
  const Tensor parameter_sums =
      zeroed({s.slices * s.column_blocks, s.heads, ParameterSums<T>::number(s)}, floats.dtype(kDouble));
};

// Calls function(Data(), T(), Element()) with the types of tokens, arithmetic, and factors of pooled products.
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
