// Aggregated attention of one group of queries: neighbours in a row, one in each lane of a vector.
//
// Tokens lie in planes, one for each channel, in which neighbours in a row are neighbours in memory. So every step is
// elementwise for the queries of a group: products with a pooled key multiply vectors by its channels, products with
// the keys of the window read the planes shifted by a column, biases of a pooled key are neighbours in their table,
// and norms and softmax are sums of vectors.
#pragma once

#include "two_vectors.h"

namespace bioattn_mm::BIOATTN_ISA::aggregated_attention {
namespace {

// The queries of a group fill so many registers. Where a register is short, a number of a key that is broadcast to
// all lanes takes an instruction, which two of them share.
constexpr int64_t kParts = kVectorBytes < 64 ? 2 : 1;
template <typename T>
constexpr int64_t kQueries = kParts * kLanes<T>;
constexpr bool kFewRegisters = kRegisters / kParts < 16;
// Pooled keys of a block: so many sums for each of the group's registers stay in registers.
constexpr int64_t kBlock = kFewRegisters ? 6 : 8;
// Where registers are few, sums over pooled keys go through the rows once for each block of channels. Then each block
// has its rows for itself, one after the other: all rows of all channels and the factors do not fit in the
// first-level cache.
constexpr bool kRowsInBlocks = kFewRegisters;

// A number for each query of a group.
template <typename T>
using Lanes = std::conditional_t<kParts == 1, Vector<T>, TwoVectors<T>>;

template <typename T>
BIOATTN_INLINE Lanes<T> load_lanes(const T* data) {
  if constexpr (kParts == 1)
    return load(data);
  else
    return {load(data), load(data + kLanes<T>)};
}
#if BIOATTN_BFLOAT16
BIOATTN_INLINE Bits load_lanes(const Pair* data) { return load(data); }
#endif

// As in torch.nn.functional.normalize of the layer.
constexpr double kSmallestNorm = 1e-6;

// Planes of tokens that become unit vectors; in lanes that hold no token they are 0.
template <typename T>
struct UnitVectors {
  T *tokens, *inverse_norms;  // (d, stride) and (stride)
  int64_t channels, stride;
};

// Planes of queries; `scaled` = (unit + query_embedding) * factor.
template <typename T>
struct ScaledQueries {
  const T *unit, *query_embedding, *factors;  // (d, stride), (d), (stride)
  T* scaled;                                  // (d, stride)
  int64_t channels, stride;
};

// Pooled tokens are numbers of the same dtype, or, for tokens in bfloat16, pairs: of two channels in blocks, and of
// two keys in rows.
template <typename T, typename Element = T>
struct Group {
  int64_t channels, offsets, window, pooled_keys, blocks;  // d, k * k, k, pooled keys, blocks of them
  int64_t query_stride, key_stride;
  const T *query, *unit_query;  // planes with `query_stride`
  const T* const* keys;         // (k) planes with `key_stride` of the window's rows, from the window's first
  const T* const* values;       //     column of the first query; null outside of the image
  const T* outside;             // (k, lanes), -inf where a column of the window is outside of the image
  const T* pooled_bias;         // biases of the group's queries, for each pooled key at a place:
  const int64_t* bias_places;   // (pooled keys)
  const Element *pooled_key, *pooled_value;    // blocks (d, kBlock) and rows (d padded to kBlock), see kRowsInBlocks
  const T *window_bias, *tokens, *token_bias;  // (k * k), (d, k * k), (k * k)
  T *pooled, *window_weights,
      *token_weights;     // (pooled keys, lanes), (k * k, lanes), (k * k, lanes): logits, then weights
  T *output, *logsumexp;  // (d padded, lanes), (lanes)
  Element* packed;        // room for the pairs of 2 d or all pooled keys, (lanes) each
};

template <typename T, typename Element = T>
struct GradientGroup : Group<T, Element> {
  int64_t row_channels;                                  // d padded as in OuterProducts
  const T* grad_output;                                  // planes with `query_stride`
  const Element *pooled_value_blocks, *pooled_key_rows;  // the same
  T* grad_pooled_bias;                                   // as `pooled_bias`
  T *grad_pooled, *grad_window, *grad_tokens;            // of the logits, and of the token weights
  T *grad_window_rows, *factor_rows;      // where grad_window and the weights of the window's values are
  int64_t window_stride;                  //     for WindowGradients, and the distance of its offsets
  T *window_bias_sums, *token_bias_sums;  // (k * k, lanes): sums of grad_window and grad_tokens
  T* grad_query;                          // (d padded, lanes)
  // Factors of the sums for pooled keys and values, as in OuterProducts: of this group.
  Element *key_factors, *key_rows, *value_factors, *value_rows;
};

// Factors of one pooled key: of the lanes.
template <typename T, typename Element>
constexpr int64_t kSteps = kQueries<T> / kNumbers<Element>;

// The sums for pooled keys or values are larger than the first-level cache. They are loaded and stored once for so
// many groups, whose factors are kept until then.
constexpr int64_t kGroups = 4;

// sums[p][c] += sum over lanes of factors[p][lane] * rows[lane][c] for each of some groups. The sums of pairs are in
// blocks of lanes, in which the keys are the lanes of vectors; `place_of_sum` says where.
template <typename T, typename Element = T>
struct OuterProducts {
  T* sums;                 // (pooled keys, row_channels), or (pooled keys / lanes, row_channels, lanes)
  const Element* factors;  // (groups, pooled keys, kSteps)
  const Element* rows;     // (groups, kSteps, row_channels)
  int64_t groups, pooled_keys, row_channels;
};

// To what multiples pooled keys and channels of the sums are padded.
template <typename T, typename Element>
constexpr int64_t kKeysOfSums = kNumbers<Element> == 2 ? kQueries<T> : kBlock;
template <typename T, typename Element>
constexpr int64_t kChannelsOfSums = kNumbers<Element> == 2 ? kBlock
                                    : kVectorBytes < 64    ? kLanes<T>
                                                           : kLanes<T> / 2;

template <typename T, typename Element>
BIOATTN_INLINE int64_t place_of_sum(int64_t p, int64_t c, int64_t row_channels) {
  if constexpr (kNumbers<Element> == 1) {
    return p * row_channels + c;
  } else {
    // The even keys of a block come before the odd ones.
    const int64_t key = p % kQueries<T>, lane = key / 2 + key % 2 * kQueries<T> / 2;
    return (p / kQueries<T> * row_channels + c) * kQueries<T> + lane;
  }
}

// The gradient of what UnitVectors and ScaledQueries compute, for the lanes of one group, and sums for that of the
// parameters.
template <typename T>
struct QueryGradient {
  int64_t channels, offsets, stride;
  const T *unit, *inverse_norms, *factors, *log_lengths;  // `unit` with `stride`, the rest (lanes)
  const T *query_embedding, *tokens, *grad_tokens;        // (d), (d, k * k), (k * k, lanes)
  T* gradient;                                            // (d, lanes), of the scaled query; then of the query
  T *embedding_sums, *scale_sums, *token_sums;            // (d, lanes), (lanes), (d, k * k, lanes)
};

// Gradients of the keys and values of a group of neighbours, gathered from the queries in whose windows they are.
template <typename T>
struct WindowGradients {
  int64_t channels, offsets, window, stride, padded_width;
  const T* const* queries;       // (k) planes with `stride` of the rows of queries, as Group::keys
  const T* const* grad_outputs;  // the same
  const T* const* grad_window;   // (k) for each row of queries (k * k, padded_width), from the first column
  const T* const* factors;       // the same: the weights of the values
  T *grad_key, *grad_value;      // (d, lanes)
};

template <typename T>
struct UnitGradient {
  int64_t channels;
  const T *unit, *inverse_norms;  // (d, lanes), (lanes)
  T* gradient;                    // (d, lanes), of the unit vectors; then of the vectors
};

// Pooled tokens (pooled keys padded to kBlock, row_size) where products read them.
template <typename T, typename Element = T>
struct PooledLayouts {
  const T* tokens;         // rows of `row_size`
  Element *rows, *blocks;  // rows as in Group, unless the tokens are these, and blocks (d, kBlock)
  int64_t padded_keys, channels, row_size;
};

template <typename T>
BIOATTN_KERNEL void make_unit(const UnitVectors<T> u) {
  for (int64_t first = 0; first < u.stride; first += kLanes<T>) {
    Vector<T> squares = {};
    for (int64_t c = 0; c < u.channels; ++c) {
      const Vector<T> x = load(u.tokens + c * u.stride + first);
      squares += x * x;
    }
    T* inverse = u.inverse_norms + first;
    store(inverse, squares);
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
      const T norm = std::sqrt(inverse[lane]);
      inverse[lane] = 1 / (norm < T(kSmallestNorm) ? T(kSmallestNorm) : norm);
    }
    const Vector<T> factor = load(inverse);
    for (int64_t c = 0; c < u.channels; ++c) {
      T* x = u.tokens + c * u.stride + first;
      store(x, Vector<T>(load(x) * factor));
    }
  }
}

template <typename T>
BIOATTN_KERNEL void scale_queries(const ScaledQueries<T> q) {
  for (int64_t c = 0; c < q.channels; ++c)
    for (int64_t first = 0; first < q.stride; first += kLanes<T>) {
      const int64_t place = c * q.stride + first;
      store(q.scaled + place, Vector<T>((load(q.unit + place) + q.query_embedding[c]) * load(q.factors + first)));
    }
}

// Vectors as factors of products: in memory with a stride, or packed in pairs.
template <typename Element>
struct Factors {
  const Element* data;
  int64_t stride, number;
};

template <typename T>
BIOATTN_INLINE Factors<T> pack(const T* vectors, int64_t stride, int64_t number, T*) {
  return {vectors, stride, number};
}

// products[k] = factors . keys[k] for one block of keys
template <typename T, typename Element>
BIOATTN_INLINE void multiply_by_block(
    Lanes<T> (&products)[kBlock], const Factors<Element>& factors, const Element* keys) {
  for (int64_t k = 0; k < kBlock; ++k) products[k] = Lanes<T>{};
  for (int64_t c = 0; c < factors.number; ++c, keys += kBlock) {
    const auto x = load_lanes(factors.data + c * factors.stride);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kBlock; ++k) add_product(products[k], x, keys[k]);
  }
}

// How many blocks of sums are computed at the same time: instructions for pairs wait for the sum
// of the one before, and only processors with enough registers have them.
template <typename Element>
constexpr int64_t kBlocksAtOnce = kNumbers<Element> == 2 ? 3 : 1;

// Factors of the keys of one step, a key or a pair: compute(p) gives the lanes of a key. They are also written to
// `written`, where they are factors of rows of queries.
template <typename T, typename Compute>
BIOATTN_INLINE Lanes<T> factors_of_step(int64_t step, T* written, const Compute& compute) {
  const Lanes<T> factors = compute(step);
  store(written + step * kQueries<T>, factors);
  return factors;
}

template <typename T>
BIOATTN_INLINE Lanes<T> written_factors(int64_t step, const T* written) {
  return load_lanes(written + step * kQueries<T>);
}

// sums[c] = sum over steps of factors * rows[c] for kBlocks blocks of channels; factors_of(step) gives the factors.
template <int64_t kBlocks, typename T, typename Element, typename FactorsOf>
BIOATTN_INLINE void sum_blocks(
    T* sums, int64_t steps, const Element* rows, int64_t row_size, const FactorsOf& factors_of) {
  Lanes<T> sum[kBlocks * kBlock] = {};
  for (int64_t step = 0; step < steps; ++step, rows += row_size) {
    const auto factors = factors_of(step);
#pragma GCC unroll 24
    for (int64_t c = 0; c < kBlocks * kBlock; ++c) add_product(sum[c], factors, rows[c]);
  }
#pragma GCC unroll 24
  for (int64_t c = 0; c < kBlocks * kBlock; ++c) store(sums + c * kQueries<T>, sum[c]);
}

// The same for all channels of rows padded to blocks: first_time(step) gives the factors for the first blocks, and
// again(step) those for the others.
template <typename T, typename Element, typename FirstTime, typename Again>
BIOATTN_INLINE void sum_rows(
    T* sums, int64_t steps, const Element* rows, int64_t channels, const FirstTime& first_time, const Again& again) {
  constexpr int64_t at_once = kBlocksAtOnce<Element>;
  const int64_t padded = (channels + kBlock - 1) / kBlock * kBlock;
  const int64_t row_size = kRowsInBlocks ? kBlock : padded, to_next = kRowsInBlocks ? steps : 1;
  int64_t first = at_once * kBlock;
  if (first <= padded)
    sum_blocks<at_once>(sums, steps, rows, row_size, first_time);
  else
    sum_blocks<1>(sums, steps, rows, row_size, first_time), first = kBlock;
  for (; first + at_once * kBlock <= padded; first += at_once * kBlock)
    sum_blocks<at_once>(sums + first * kQueries<T>, steps, rows + first * to_next, row_size, again);
  for (; first < padded; first += kBlock)
    sum_blocks<1>(sums + first * kQueries<T>, steps, rows + first * to_next, row_size, again);
}

// Copies kLanes<float> tokens, `token_stride` apart, to planes of their channels, of which there are at least as
// many; and back. Square blocks are transposed in registers.
BIOATTN_KERNEL void load_block(
    const float* tokens, int64_t token_stride, int64_t channels, float* planes, int64_t stride) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t begin = 0; begin < channels; begin += lanes) {
    const int64_t first = std::min(begin, channels - lanes);
    Vector<float> rows[lanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) rows[i] = load(tokens + i * token_stride + first);
    transpose_blocks(rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) store(planes + (first + i) * stride, rows[i]);
  }
}

BIOATTN_KERNEL void store_block(
    const float* planes, int64_t stride, int64_t channels, float* tokens, int64_t token_stride) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t begin = 0; begin < channels; begin += lanes) {
    const int64_t first = std::min(begin, channels - lanes);
    Vector<float> rows[lanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) rows[i] = load(planes + (first + i) * stride);
    transpose_blocks(rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) store(tokens + i * token_stride + first, rows[i]);
  }
}

template <typename T>
BIOATTN_INLINE void transpose(const T* planes, int64_t stride, int64_t channels, T* rows, int64_t row_channels) {
  if constexpr (kFewRegisters && std::is_same_v<T, float>) {
    if (channels >= kLanes<float>) {
      for (int64_t lane = 0; lane < kQueries<float>; lane += kLanes<float>)
        store_block(planes + lane, stride, channels, rows + lane * row_channels, row_channels);
      return;
    }
  }
  for (int64_t lane = 0; lane < kQueries<T>; ++lane)
    for (int64_t c = 0; c < channels; ++c) rows[lane * row_channels + c] = planes[c * stride + lane];
}

// The part of the sums of kKeys pooled keys and kVectors vectors of channels, which have kBytes.
template <int64_t kKeys, int64_t kVectors, int64_t kBytes = kVectorBytes, typename T>
BIOATTN_INLINE void add_tile_of_products(const OuterProducts<T>& o, int64_t p, int64_t first) {
  typedef T Channels __attribute__((vector_size(kBytes)));
  typedef T InMemory __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
  constexpr int64_t lanes = kBytes / sizeof(T);
  T* target = o.sums + p * o.row_channels + first;
  Channels sum[kKeys][kVectors];
#pragma GCC unroll 8
  for (int64_t k = 0; k < kKeys; ++k)
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v)
      sum[k][v] = *reinterpret_cast<const InMemory*>(target + k * o.row_channels + v * lanes);
  for (int64_t group = 0; group < o.groups; ++group) {
    const T* factors = o.factors + (group * o.pooled_keys + p) * kQueries<T>;
    const T* rows = o.rows + group * kQueries<T> * o.row_channels + first;
    for (int64_t step = 0; step < kQueries<T>; ++step, rows += o.row_channels) {
      Channels row[kVectors];
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const InMemory*>(rows + v * lanes);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kKeys; ++k)
#pragma GCC unroll 3
        for (int64_t v = 0; v < kVectors; ++v) sum[k][v] += row[v] * factors[k * kQueries<T> + step];
    }
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < kKeys; ++k)
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v)
      *reinterpret_cast<InMemory*>(target + k * o.row_channels + v * lanes) = sum[k][v];
}

template <typename T>
BIOATTN_KERNEL void add_outer_products(const OuterProducts<T> o) {
  // Three vectors of channels, or fewer, and as many keys as fill the registers.
  constexpr int64_t lanes = kLanes<T>, half = kBlock / 2;
  for (int64_t p = 0; p < o.pooled_keys; p += kBlock) {
    int64_t first = 0;
    for (; first + 3 * lanes <= o.row_channels; first += 3 * lanes) {
      add_tile_of_products<half, 3>(o, p, first);
      add_tile_of_products<half, 3>(o, p + half, first);
    }
    for (; first + 2 * lanes <= o.row_channels; first += 2 * lanes) add_tile_of_products<kBlock, 2>(o, p, first);
    for (; first + lanes <= o.row_channels; first += lanes) add_tile_of_products<kBlock, 1>(o, p, first);
    if constexpr (kVectorBytes == 64)
      if (first < o.row_channels) add_tile_of_products<kBlock, 1, kVectorBytes / 2>(o, p, first);
  }
}

template <typename T>
BIOATTN_KERNEL void lay_out(const PooledLayouts<T> l) {
  if (kRowsInBlocks) {
    T* row = l.rows;
    for (int64_t c = 0; c < l.row_size; c += kBlock)
      for (int64_t p = 0; p < l.padded_keys; ++p, row += kBlock)
        std::copy_n(l.tokens + p * l.row_size + c, kBlock, row);
  }
  T* target = l.blocks;
  for (const T* block = l.tokens; block < l.tokens + l.padded_keys * l.row_size; block += kBlock * l.row_size)
    for (int64_t c = 0; c < l.channels; ++c, target += kBlock)
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) target[k] = block[k * l.row_size + c];
}

#if BIOATTN_BFLOAT16
// Vectors reach beyond the end of a row, into the next one, which is written later, or into the room after the last.
BIOATTN_KERNEL void lay_out(const PooledLayouts<float, Pair> l) {
  constexpr int64_t lanes = kLanes<float>;
  const int64_t pairs = (l.channels + 1) / 2;
  for (int64_t p = 0; p < l.padded_keys; p += 2) {
    const float* tokens = l.tokens + p * l.row_size;
    for (int64_t c = 0; c < l.row_size; c += lanes)
      store(l.rows + p / 2 * l.row_size + c, make_pairs(load(tokens + c), load(tokens + l.row_size + c)));
  }
  for (int64_t p = 0; p < l.padded_keys; ++p) {
    const float* token = l.tokens + p * l.row_size;
    Pair* block = l.blocks + p / kBlock * pairs * kBlock + p % kBlock;
    for (int64_t first = 0; first < pairs; first += lanes) {
      Pair of_channels[lanes];
      store(of_channels, narrow(load(token + 2 * first), load(token + 2 * first + lanes)));
      for (int64_t k = 0; k < std::min(lanes, pairs - first); ++k) block[(first + k) * kBlock] = of_channels[k];
    }
  }
}

BIOATTN_INLINE Factors<Pair> pack(const float* vectors, int64_t stride, int64_t number, Pair* packed) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t k = 0; k < number / 2; ++k)
    store(packed + k * lanes, make_pairs(load(vectors + 2 * k * stride), load(vectors + (2 * k + 1) * stride)));
  if (number % 2)
    store(packed + number / 2 * lanes, make_pairs(load(vectors + (number - 1) * stride), Vector<float>{}));
  return {packed, lanes, (number + 1) / 2};
}

// The pairs are of two neighbouring lanes.
BIOATTN_INLINE void transpose(
    const float* planes, int64_t stride, int64_t channels, Pair* rows, int64_t row_channels) {
  constexpr int64_t half = kLanes<float> / 2;
  for (int64_t c = 0; c < channels; c += 2) {
    const bool has_next = c + 1 < channels;
    Pair pairs[2 * half];
    store(pairs, narrow(load(planes + c * stride), has_next ? load(planes + (c + 1) * stride) : Vector<float>{}));
    for (int64_t k = 0; k < half; ++k) {
      rows[k * row_channels + c] = pairs[k];
      if (has_next) rows[k * row_channels + c + 1] = pairs[half + k];
    }
  }
}

template <typename Compute>
BIOATTN_INLINE Bits factors_of_step(int64_t step, Pair* written, const Compute& compute) {
  const Vector<float> first = compute(2 * step);
  const Bits numbers = narrow(first, compute(2 * step + 1));
  store(written + step * kLanes<float>, numbers);
  return make_pairs(numbers);
}

BIOATTN_INLINE Bits written_factors(int64_t step, const Pair* written) {
  return make_pairs(load(written + step * kLanes<float>));
}
#endif

#if BIOATTN_BFLOAT16
// Adds products with kChannels channels of the rows to their sums for the keys of a block.
template <int64_t kChannels>
BIOATTN_INLINE void add_products_of_channels(
    float* sums, const Pair* factors, int64_t steps, const Pair* rows, int64_t row_channels) {
  constexpr int64_t lanes = kLanes<float>;
  Vector<float> sum[kChannels];
#pragma GCC unroll 24
  for (int64_t c = 0; c < kChannels; ++c) sum[c] = load(sums + c * lanes);
  for (int64_t step = 0; step < steps; ++step, rows += row_channels) {
    const Bits factor = load(factors + step * lanes);
#pragma GCC unroll 24
    for (int64_t c = 0; c < kChannels; ++c) add_product(sum[c], factor, rows[c]);
  }
#pragma GCC unroll 24
  for (int64_t c = 0; c < kChannels; ++c) store(sums + c * lanes, sum[c]);
}

BIOATTN_KERNEL void add_outer_products(const OuterProducts<float, Pair> o) {
  constexpr int64_t lanes = kLanes<float>, steps = kSteps<float, Pair>, at_once = kBlocksAtOnce<Pair> * kBlock;
  Pair transposed[kGroups * steps * lanes];
  for (int64_t p = 0; p < o.pooled_keys; p += lanes) {
    for (int64_t group = 0; group < o.groups; ++group) {
      // A vector of the factors holds two keys; transposed, it holds one step of all keys.
      const Pair* factors = o.factors + (group * o.pooled_keys + p) * steps;
      Bits vectors[steps];
#pragma GCC unroll 8
      for (int64_t k = 0; k < steps; ++k) vectors[k] = load(factors + k * lanes);
      transpose_blocks(vectors);
#pragma GCC unroll 8
      for (int64_t k = 0; k < steps; ++k) store(transposed + (group * steps + k) * lanes, vectors[k]);
    }
    float* sums = o.sums + p * o.row_channels;
    int64_t c = 0;
    for (; c + at_once <= o.row_channels; c += at_once)
      add_products_of_channels<at_once>(sums + c * lanes, transposed, o.groups * steps, o.rows + c, o.row_channels);
    for (; c < o.row_channels; c += kBlock)
      add_products_of_channels<kBlock>(sums + c * lanes, transposed, o.groups * steps, o.rows + c, o.row_channels);
  }
}

// Tokens of bfloat16 in a row of the image, one for each lane of a group, as planes of their channels; at least
// kChannels channels. Sixteen tokens and channels at a time are transposed in registers.
struct TokensAndPlanes {
  static constexpr int64_t kChannels = 16;
  c10::BFloat16* tokens;
  int64_t token_stride, channels, left, right;  // lanes from `left` on to before `right` have a token
  float* planes;
  int64_t stride;
};

typedef uint32_t HalfOfPairs __attribute__((vector_size(32)));
typedef uint32_t HalfOfPairsInMemory __attribute__((vector_size(32), aligned(2), may_alias));

// `all`: each lane has a token.
template <bool all>
inline void load_planes_in_pairs(const TokensAndPlanes& t) {
  const auto token = [&](int64_t lane, int64_t first) {
    const bool exists = all || (t.left <= lane && lane < t.right);
    return exists ? *reinterpret_cast<const HalfOfPairsInMemory*>(t.tokens + lane * t.token_stride + first)
                  : HalfOfPairs{};
  };
  for (int64_t begin = 0; begin < t.channels; begin += TokensAndPlanes::kChannels) {
    const int64_t first = std::min(begin, t.channels - TokensAndPlanes::kChannels);
    Bits rows[8];
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i)
      rows[i] =
          (Bits)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)token(i, first)), (__m256i)token(i + 8, first), 1);
    transpose_blocks(rows);
    float* target = t.planes + first * t.stride;
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) {
      store(target + 2 * i * t.stride, (Vector<float>)(rows[i] << 16));
      store(target + (2 * i + 1) * t.stride, (Vector<float>)(rows[i] & 0xffff0000u));
    }
  }
}

inline void store_planes_in_pairs(const TokensAndPlanes& t) {
  for (int64_t begin = 0; begin < t.channels; begin += TokensAndPlanes::kChannels) {
    const int64_t first = std::min(begin, t.channels - TokensAndPlanes::kChannels);
    const float* source = t.planes + first * t.stride;
    Bits rows[8];
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i)
      rows[i] = make_pairs(load(source + 2 * i * t.stride), load(source + (2 * i + 1) * t.stride));
    transpose_blocks(rows);
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) {
      HalfOfPairs halves[2];
      std::memcpy(halves, &rows[i], sizeof halves);
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t lane = i + 8 * half;
        if (t.left <= lane && lane < t.right)
          *reinterpret_cast<HalfOfPairsInMemory*>(t.tokens + lane * t.token_stride + first) = halves[half];
      }
    }
  }
}
#endif

// The logit of a pooled key of which the product with the queries is given; padding has no weight.
template <typename T, typename Element>
BIOATTN_INLINE Lanes<T> pooled_logit(const Group<T, Element>& g, const Lanes<T>& product, int64_t p) {
  return p < g.pooled_keys ? product + load_lanes(g.pooled_bias + g.bias_places[p])
                           : Lanes<T>{} - std::numeric_limits<T>::infinity();
}

// products[dx] = vectors . tokens of the window's column dx, for kColumns columns of one of its rows. Planes of both.
template <int64_t kColumns, typename T>
BIOATTN_INLINE void multiply_by_columns(
    T* products, const T* vectors, int64_t stride, const T* tokens, int64_t token_stride, int64_t channels) {
  Lanes<T> product[kColumns] = {};
  for (int64_t c = 0; c < channels; ++c, vectors += stride, tokens += token_stride) {
    const Lanes<T> x = load_lanes(vectors);
#pragma GCC unroll 3
    for (int64_t dx = 0; dx < kColumns; ++dx) product[dx] += x * load_lanes(tokens + dx);
  }
#pragma GCC unroll 3
  for (int64_t dx = 0; dx < kColumns; ++dx) store(products + dx * kQueries<T>, product[dx]);
}

// The same for all of the window (k * k, lanes); 0 in rows outside of the image.
template <typename T, typename Element>
BIOATTN_INLINE void multiply_by_window(
    T* products, const Group<T, Element>& g, const T* vectors, const T* const* tokens) {
  for (int64_t dy = 0; dy < g.window; ++dy) {
    for (int64_t dx = 0; dx < g.window; products += kQueries<T>) {
      if (tokens[dy] == nullptr) {
        store(products, Lanes<T>{}), ++dx;
      } else if (dx + 3 <= g.window) {
        multiply_by_columns<3>(products, vectors, g.query_stride, tokens[dy] + dx, g.key_stride, g.channels);
        dx += 3, products += 2 * kQueries<T>;
      } else {
        multiply_by_columns<1>(products, vectors, g.query_stride, tokens[dy] + dx, g.key_stride, g.channels), ++dx;
      }
    }
  }
}

// sums[c] += sum over the window of weights * tokens, for kChannels channels from c on.
template <int64_t kChannels, typename T, typename Element>
BIOATTN_INLINE void add_window_of_channels(
    T* sums, const Group<T, Element>& g, const T* weights, const T* const* tokens, int64_t c) {
  Lanes<T> sum[kChannels];
#pragma GCC unroll 8
  for (int64_t k = 0; k < kChannels; ++k) sum[k] = load_lanes(sums + (c + k) * kQueries<T>);
  for (int64_t dy = 0; dy < g.window; ++dy) {
    if (tokens[dy] == nullptr) continue;
    const T* row = tokens[dy] + c * g.key_stride;
    for (int64_t dx = 0; dx < g.window; ++dx) {
      const Lanes<T> weight = load_lanes(weights + (dy * g.window + dx) * kQueries<T>);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kChannels; ++k) sum[k] += weight * load_lanes(row + k * g.key_stride + dx);
    }
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < kChannels; ++k) store(sums + (c + k) * kQueries<T>, sum[k]);
}

template <typename T, typename Element>
BIOATTN_INLINE void add_window(T* sums, const Group<T, Element>& g, const T* weights, const T* const* tokens) {
  int64_t c = 0;
  for (; c + kBlock <= g.channels; c += kBlock) add_window_of_channels<kBlock>(sums, g, weights, tokens, c);
  for (; c < g.channels; ++c) add_window_of_channels<1>(sums, g, weights, tokens, c);
}

// The logits of the window.
template <typename T, typename Element>
BIOATTN_INLINE void compute_window_logits(const Group<T, Element>& g) {
  multiply_by_window(g.window_weights, g, g.query, g.keys);
  T* logit = g.window_weights;
  for (int64_t dy = 0; dy < g.window; ++dy)
    for (int64_t dx = 0; dx < g.window; ++dx, logit += kQueries<T>)
      store(
          logit, g.keys[dy] == nullptr ? Lanes<T>{} - std::numeric_limits<T>::infinity()
                                       : load_lanes(logit) + (load_lanes(g.outside + dx * kQueries<T>) +
                                                              g.window_bias[dy * g.window + dx]));
}

// exp(x - shift)
template <typename T>
BIOATTN_INLINE Lanes<T> weight_of(const Lanes<T>& x, const Lanes<T>& shift, const T*) {
  return exponential(x - shift);
}

#if BIOATTN_BFLOAT16
BIOATTN_INLINE Vector<float> weight_of(const Vector<float>& x, const Vector<float>& shift, const Pair*) {
  return rough_exponential(x - shift);
}
#endif

// x = exp(x - shift) for `number` vectors; returns their sum.
template <typename T, typename Element>
BIOATTN_INLINE Lanes<T> exponentiate_lanes(T* x, int64_t number, const Lanes<T>& shift, const Element* element) {
  Lanes<T> sum = {};
  for (int64_t p = 0; p < number; ++p, x += kQueries<T>) {
    const Lanes<T> weight = weight_of(load_lanes(x), shift, element);
    store(x, weight);
    sum += weight;
  }
  return sum;
}

// Token weights of kNumber offsets: products of the unit queries and the learnable tokens.
template <int64_t kNumber, typename T, typename Element>
BIOATTN_INLINE void compute_token_weights_of(const Group<T, Element>& g, int64_t offset) {
  Lanes<T> sum[kNumber];
#pragma GCC unroll 3
  for (int64_t k = 0; k < kNumber; ++k) sum[k] = Lanes<T>{} + g.token_bias[offset + k];
  for (int64_t c = 0; c < g.channels; ++c) {
    const Lanes<T> x = load_lanes(g.unit_query + c * g.query_stride);
#pragma GCC unroll 3
    for (int64_t k = 0; k < kNumber; ++k) sum[k] += x * g.tokens[c * g.offsets + offset + k];
  }
#pragma GCC unroll 3
  for (int64_t k = 0; k < kNumber; ++k) store(g.token_weights + (offset + k) * kQueries<T>, sum[k]);
}

template <typename T, typename Element>
BIOATTN_INLINE void compute_token_weights(const Group<T, Element>& g) {
  int64_t offset = 0;
  for (; offset + 3 <= g.offsets; offset += 3) compute_token_weights_of<3>(g, offset);
  for (; offset < g.offsets; ++offset) compute_token_weights_of<1>(g, offset);
}

// The logits of the pooled keys; returns the highest.
template <typename T, typename Element>
BIOATTN_INLINE Lanes<T> compute_pooled_logits(const Group<T, Element>& g, const Factors<Element>& query, T* target) {
  Lanes<T> highest = Lanes<T>{} - std::numeric_limits<T>::infinity();
  const Element* keys = g.pooled_key;
  for (int64_t p = 0; p < g.blocks * kBlock; p += kBlock, keys += query.number * kBlock) {
    Lanes<T> products[kBlock];
    multiply_by_block<T>(products, query, keys);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kBlock; ++k, target += kQueries<T>) {
      const Lanes<T> logit = pooled_logit(g, products[k], p + k);
      store(target, logit);
      highest = larger(highest, logit);
    }
  }
  return highest;
}

template <typename T, typename Element>
BIOATTN_KERNEL void attend(const Group<T, Element> g) {
  if (g.tokens) compute_token_weights(g);
  const auto query = pack(g.query, g.query_stride, g.channels, g.packed);
  Lanes<T> highest = compute_pooled_logits(g, query, g.pooled);
  compute_window_logits(g);
  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    const Lanes<T> logit = load_lanes(g.window_weights + offset * kQueries<T>);
    highest = larger(highest, logit);
  }

  Lanes<T> sum = exponentiate_lanes(g.pooled, g.blocks * kBlock, highest, g.packed);
  sum += exponentiate_lanes(g.window_weights, g.offsets, highest, g.packed);
  const auto weights = pack(g.pooled, kQueries<T>, g.blocks * kBlock, g.packed);
  const auto weights_of = [&](int64_t step) __attribute__((always_inline)) {
    return load_lanes(weights.data + step * kQueries<T>);
  };
  sum_rows(g.output, weights.number, g.pooled_value, g.channels, weights_of, weights_of);
  const Lanes<T> scale = inverse_of(sum);
  store(g.logsumexp, sum);
  for (int64_t lane = 0; lane < kQueries<T>; ++lane) g.logsumexp[lane] = std::log(g.logsumexp[lane]);
  add_to(g.logsumexp, highest);

  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    T* weight = g.window_weights + offset * kQueries<T>;
    store(weight, load_lanes(weight) * scale + load_lanes(g.token_weights + offset * kQueries<T>));
  }
  for (int64_t c = 0; c < g.channels; ++c)
    store(g.output + c * kQueries<T>, load_lanes(g.output + c * kQueries<T>) * scale);
  add_window(g.output, g, g.window_weights, g.values);
}

// sum_rows with written factors, as a function of its own: what its caller holds in registers would take the place of
// sums.
template <typename T>
BIOATTN_KERNEL void sum_rows_of_written(T* sums, int64_t steps, const T* rows, int64_t channels, const T* written) {
  const auto factors = [&](int64_t step) __attribute__((always_inline)) { return written_factors(step, written); };
  sum_rows(sums, steps, rows, channels, factors, factors);
}

template <typename T, typename Element>
BIOATTN_KERNEL void differentiate(const GradientGroup<T, Element> g) {
  if (g.tokens) compute_token_weights(g);
  compute_window_logits(g);
  const Lanes<T> shift = load_lanes(g.logsumexp);
  Lanes<T> sum = exponentiate_lanes(g.window_weights, g.offsets, shift, g.packed);
  // The gradient of a logit is weight * (gradient of the weight - mean of these under the weights).
  Lanes<T> mean = {};
  multiply_by_window(g.grad_tokens, g, g.grad_output, g.values);
  for (int64_t place = 0; place < g.offsets * kQueries<T>; place += kQueries<T>)
    mean += load_lanes(g.window_weights + place) * load_lanes(g.grad_tokens + place);
  const auto query = pack(g.query, g.query_stride, g.channels, g.packed);
  const auto grad_output = pack(g.grad_output, g.query_stride, g.channels, g.packed + query.number * kQueries<T>);
  const int64_t pooled = g.blocks * kBlock, block_size = query.number * kBlock;
  const Element* values = g.pooled_value_blocks;
  // Weights of the pooled keys and their gradients. Where registers are few, each step has a loop of its own; else
  // all of a block is done in registers.
  const T *weights = g.pooled, *gradients = g.grad_pooled;
  if constexpr (kFewRegisters) {
    T *of_weights = g.value_factors, *of_gradients = g.key_factors;
    compute_pooled_logits(g, query, of_weights);
    sum += exponentiate_lanes(of_weights, pooled, shift, g.packed);
    T *weight = of_weights, *gradient = of_gradients;
    for (int64_t p = 0; p < pooled; p += kBlock, values += block_size) {
      Lanes<T> products[kBlock];
      multiply_by_block<T>(products, grad_output, values);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k, weight += kQueries<T>, gradient += kQueries<T>) {
        mean += load_lanes(weight) * products[k];
        store(gradient, products[k]);
      }
    }
    weights = of_weights, gradients = of_gradients;
  } else {
    const Element* keys = g.pooled_key;
    for (int64_t p = 0; p < pooled; p += kBlock, keys += block_size, values += block_size) {
      Lanes<T> products[kBlock], products_with_values[kBlock];
      multiply_by_block<T>(products, query, keys);
      multiply_by_block<T>(products_with_values, grad_output, values);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) {
        const Lanes<T> weight = weight_of(pooled_logit(g, products[k], p + k), shift, g.packed);
        sum += weight;
        mean += weight * products_with_values[k];
        store(g.pooled + (p + k) * kQueries<T>, weight);
        store(g.grad_pooled + (p + k) * kQueries<T>, products_with_values[k]);
      }
#pragma GCC unroll 8
      for (int64_t step = 0; step < kBlock / kNumbers<Element>; ++step)
        factors_of_step(
            p / kNumbers<Element> + step, g.value_factors,
            [&](int64_t key) __attribute__((always_inline)) { return load_lanes(g.pooled + key * kQueries<T>); });
    }
  }
  // 1 but for rounding, which would remain where the gradients of logits cancel; 0 in lanes without a query.
  const Lanes<T> scale = where_less(shift, std::numeric_limits<T>::infinity(), inverse_of(sum));
  mean *= scale;
  const Lanes<T> scaled_mean = mean * scale;
  T* grad_bias = g.grad_pooled_bias;
  const int64_t *places = g.bias_places, pooled_keys = g.pooled_keys, steps = pooled / kNumbers<Element>;
  Element* key_factors = g.key_factors;
  const auto gradient_of_logit = [&](int64_t p) __attribute__((always_inline)) {
    const int64_t place = p * kQueries<T>;
    const Lanes<T> gradient = load_lanes(weights + place) * (load_lanes(gradients + place) * scale - scaled_mean);
    if (p < pooled_keys) add_to(grad_bias + places[p], gradient);
    return gradient;
  };
  const auto factors_at = [&](int64_t step) __attribute__((always_inline)) {
    return factors_of_step(step, key_factors, gradient_of_logit);
  };
  if constexpr (kFewRegisters) {
    for (int64_t p = 0; p < pooled; ++p) factors_at(p);
    sum_rows_of_written(g.grad_query, steps, g.pooled_key_rows, g.channels, key_factors);
  } else {
    sum_rows(
        g.grad_query, steps, g.pooled_key_rows, g.channels, factors_at,
        [&](int64_t step) __attribute__((always_inline)) { return written_factors(step, key_factors); });
  }
  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    const int64_t place = offset * kQueries<T>;
    const Lanes<T> weight = load_lanes(g.window_weights + place) * scale,
                   grad_token = load_lanes(g.grad_tokens + place);
    const Lanes<T> gradient = weight * (grad_token - mean);
    store(g.grad_window + place, gradient);
    store(g.grad_window_rows + offset * g.window_stride, gradient);
    store(g.factor_rows + offset * g.window_stride, Lanes<T>(weight + load_lanes(g.token_weights + place)));
    add_to(g.window_bias_sums + place, gradient);
    add_to(g.token_bias_sums + place, grad_token);
  }
  add_window(g.grad_query, g, g.grad_window, g.keys);
  transpose(g.grad_output, g.query_stride, g.channels, g.value_rows, g.row_channels);
  transpose(g.query, g.query_stride, g.channels, g.key_rows, g.row_channels);
}

// The gradient through x / max(norm, kSmallestNorm).
template <typename T>
BIOATTN_INLINE void differentiate_norm(
    T* gradient, const T* unit, int64_t stride, const T* inverse_norms, int64_t channels) {
  const Lanes<T> inverse = load_lanes(inverse_norms);
  Lanes<T> along = {};
  for (int64_t c = 0; c < channels; ++c)
    along += load_lanes(gradient + c * kQueries<T>) * load_lanes(unit + c * stride);
  // Below the smallest norm, the factor is constant.
  along = where_less(inverse, T(0.99999 / kSmallestNorm), along);
  for (int64_t c = 0; c < channels; ++c) {
    T* x = gradient + c * kQueries<T>;
    store(x, inverse * (load_lanes(x) - load_lanes(unit + c * stride) * along));
  }
}

template <typename T>
BIOATTN_KERNEL void differentiate_query(const QueryGradient<T> q) {
  const Lanes<T> factor = load_lanes(q.factors), log_length = load_lanes(q.log_lengths);
  Lanes<T> scale_sum = {};
  for (int64_t c = 0; c < q.channels; ++c) {
    const Lanes<T> gradient = load_lanes(q.gradient + c * kQueries<T>), unit = load_lanes(q.unit + c * q.stride);
    scale_sum += gradient * (unit + q.query_embedding[c]);
    Lanes<T> sum = gradient * factor;
    add_to(q.embedding_sums + c * kQueries<T>, sum);
    for (int64_t offset = 0; offset < q.offsets; ++offset) {
      const Lanes<T> grad_token = load_lanes(q.grad_tokens + offset * kQueries<T>);
      sum += grad_token * q.tokens[c * q.offsets + offset];
      add_to(q.token_sums + (c * q.offsets + offset) * kQueries<T>, grad_token * unit);
    }
    store(q.gradient + c * kQueries<T>, sum);
  }
  add_to(q.scale_sums, scale_sum * log_length);
  differentiate_norm(q.gradient, q.unit, q.stride, q.inverse_norms, q.channels);
}

// The gradients of kChannels channels from c on: of the keys, of the values, or of both.
template <int64_t kChannels, bool kOfKeys, bool kOfValues, typename T>
BIOATTN_INLINE void gather_gradients_of_channels(const WindowGradients<T>& g, int64_t c) {
  Lanes<T> key[kChannels] = {}, value[kChannels] = {};
  for (int64_t dy = 0; dy < g.window; ++dy) {
    if (g.queries[dy] == nullptr) continue;
    const T *queries = g.queries[dy] + c * g.stride, *grad_outputs = g.grad_outputs[dy] + c * g.stride;
    for (int64_t dx = 0; dx < g.window; ++dx) {
      // In the window of that query, this token has the opposite offset.
      const int64_t place = (g.offsets - 1 - dy * g.window - dx) * g.padded_width + dx;
      const Lanes<T> grad_window = load_lanes(g.grad_window[dy] + place), factor = load_lanes(g.factors[dy] + place);
#pragma GCC unroll 6
      for (int64_t k = 0; k < kChannels; ++k) {
        if (kOfKeys) key[k] += grad_window * load_lanes(queries + k * g.stride + dx);
        if (kOfValues) value[k] += factor * load_lanes(grad_outputs + k * g.stride + dx);
      }
    }
  }
#pragma GCC unroll 6
  for (int64_t k = 0; k < kChannels; ++k) {
    if (kOfKeys) store(g.grad_key + (c + k) * kQueries<T>, key[k]);
    if (kOfValues) store(g.grad_value + (c + k) * kQueries<T>, value[k]);
  }
}

template <typename T>
BIOATTN_KERNEL void gather_gradients(const WindowGradients<T> g) {
  int64_t c = 0;
  if constexpr (kFewRegisters) {
    for (; c + kBlock <= g.channels; c += kBlock) {
      gather_gradients_of_channels<kBlock, true, false>(g, c);
      gather_gradients_of_channels<kBlock, false, true>(g, c);
    }
  } else {
    for (; c + 4 <= g.channels; c += 4) gather_gradients_of_channels<4, true, true>(g, c);
  }
  for (; c < g.channels; ++c) gather_gradients_of_channels<1, true, true>(g, c);
}

template <typename T>
BIOATTN_KERNEL void differentiate_unit(const UnitGradient<T> u) {
  differentiate_norm(u.gradient, u.unit, kQueries<T>, u.inverse_norms, u.channels);
}

}  // namespace
}  // namespace bioattn_mm::BIOATTN_ISA::aggregated_attention
