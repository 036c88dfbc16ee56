// Aggregated attention of one group of queries: neighbours in a row, one in each lane of a vector.
// Tokens lie in planes, one for each channel, with neighbours in a row side by side. So every step is elementwise:
// products with a pooled key multiply vectors by its channels, those with the window read planes shifted by a column.
#pragma once

#include "two_vectors.h"

namespace bioattn_mm::BIOATTN_ISA::aggregated_attention {
namespace {

// The registers of a group's queries. Where registers are short, two share the instruction that broadcasts a key.
constexpr int64_t kParts = kVectorBytes < 64 ? 2 : 1;
template <typename T>
constexpr int64_t kQueries = kParts * kLanes<T>;
constexpr bool kFewRegisters = kRegisters / kParts < 16;
// The pooled keys of a block, whose sums for all queries of the group stay in registers.
constexpr int64_t kBlock = kFewRegisters ? 6 : 8;
// Whether products with pooled tokens run in the tiles of AMX, and what their keys and channels are padded to.
template <typename Element>
constexpr bool kTiles = BIOATTN_AMX && kPacked<Element> == 2;
constexpr int64_t kPadded = BIOATTN_AMX ? 32 : kBlock;
// One element for each query of a group.
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
BIOATTN_INLINE Bits load_lanes(const BFloat16x2* data) { return load(data); }
#endif

// The smallest norm that a vector is divided by, as in the layer's torch.nn.functional.normalize.
constexpr double kSmallestNorm = 1e-6;
// An inverse norm from here on is that of a vector as short as that, or shorter: it does not depend on the vector.
constexpr double kInverseOfSmallestNorm = 0.99999 / kSmallestNorm;

// "Planes" of tokens are a matrix (d, stride), with tokens as columns; "(n, lanes)" has one column for each query.

// A scaled query is (unit + query_embedding) * factor, with the factor scale * log(number of the query's keys).
template <typename T>
struct GroupQueries {
  const T *scaled, *unit;  // planes
  int64_t stride;
  const T *inverse_norms, *factors, *log_lengths;  // (lanes)
};

// The rows of keys and values in the windows of the group, each from the first column of the first query's window on.
template <typename T>
struct WindowTokens {
  const T *const *keys, *const *values;  // (k) planes; null for a row outside of the image
  int64_t stride;
  const T* outside;  // (k, lanes): -inf where a column of the window is outside of the image, else 0
};

// The parameters of a head. Without `tokens` the token weights are given, and the queries are scaled.
template <typename T>
struct HeadParameters {
  const T *window_bias, *tokens, *token_bias, *query_embedding;  // (k * k), (d, k * k), (k * k), (d)
};

template <typename T, typename Element = T>
struct Group {
  int64_t channels;                    // d
  int64_t window, offsets;             // k, k * k
  int64_t pooled_keys, padded_pooled;  // the latter whole blocks of kBlock keys
  GroupQueries<T> queries;
  WindowTokens<T> neighbours;
  // The pooled keys and values: in blocks (d, kBlock) for products over the channels, and in rows (d padded to
  // kBlock) for sums over the keys. A bf16x2 element has two channels in blocks, two keys in rows. Tiles take a
  // matrix with a row for each key in place of the blocks, and one with a row for each channel in place of the rows.
  const Element *key_blocks, *key_rows, *value_blocks, *value_rows;
  // The biases of pooled key p are those from pooled_bias + bias_indices[p] on, one for each query of the group.
  const T* pooled_bias;
  const int64_t* bias_indices;
  HeadParameters<T> parameters;
  // The logits, which become the attention weights, and the weights of the learnable tokens: (keys, lanes).
  T *pooled_weights, *window_weights, *token_weights;
  T *output, *logsumexp;  // (d padded, lanes), (lanes)
  Element* packed;        // workspace for the bf16x2 of 2 d vectors or of all pooled keys, (lanes) each
};

// Sums over groups for the gradients of a head's parameters, one for each lane.
template <typename T>
struct LaneSums {
  T *window_bias, *scale, *query_embedding, *tokens, *token_bias;  // shapes as in HeadParameters
};

// One group's factors of the sums for the gradients of pooled keys and values (see OuterProducts).
template <typename Element>
struct OuterFactors {
  Element *of_keys, *of_values;     // (pooled keys, kSteps); for tiles with a stride of kGroups * kSteps
  Element *queries, *grad_outputs;  // (kSteps, row_channels)
  int64_t row_channels;
};

// A group with the gradients of what it reads and of what it computes on the way.
template <typename T, typename Element = T>
struct GradientGroup {
  Group<T, Element> forward;
  const T* grad_output;                        // planes with the stride of the queries
  T* grad_query;                               // (d padded, lanes): of the scaled query, at the end of the query
  T *grad_pooled_logits, *grad_window_logits;  // (pooled keys, lanes), (k * k, lanes)
  T* grad_token_weights;                       // (k * k, lanes)
  T* grad_pooled_bias;                         // in the layout of Group::pooled_bias
  LaneSums<T> sums;
  T *kept_logits, *kept_weights;  // rows (k * k, kept_stride), from the first column of the group on
  int64_t kept_stride;
  OuterFactors<Element> outer;
};

// The number of factors that one pooled key has for the lanes of a group: with bf16x2 one for two lanes.
template <typename T, typename Element>
constexpr int64_t kSteps = kQueries<T> / kPacked<Element>;

// The sums for pooled tokens exceed the L1 cache: they are loaded and stored once for this many groups.
constexpr int64_t kGroups = 4;

// sums[p][c] += sum over lanes of factors[p][lane] * rows[lane][c]; for bf16x2 `index_of_sum` says where they are.
template <typename T, typename Element = T>
struct OuterProducts {
  T* sums;           // (pooled keys, row_channels), or (pooled keys / lanes, row_channels, lanes)
  Element* factors;  // (groups, pooled keys, kSteps), or for tiles (pooled keys, kGroups, kSteps)
  Element* rows;     // (groups, kSteps, row_channels)
  int64_t groups, pooled_keys, row_channels;
};

// The multiples that pooled keys and channels of the sums are padded to.
template <typename T, typename Element>
constexpr int64_t kKeysOfSums = kPacked<Element> == 2 && !kTiles<Element> ? kQueries<T> : kPadded;
template <typename T, typename Element>
constexpr int64_t kChannelsOfSums = kPacked<Element> == 2 ? (kTiles<Element> ? kQueries<T> : kBlock)
                                    : kVectorBytes < 64   ? kLanes<T>
                                                          : kLanes<T> / 2;

template <typename T, typename Element>
BIOATTN_INLINE int64_t index_of_sum(int64_t p, int64_t c, int64_t row_channels) {
  if constexpr (kPacked<Element> == 1 || kTiles<Element>) {
    return p * row_channels + c;
  } else {
    // The even keys of a block come before the odd ones.
    const int64_t key = p % kQueries<T>, lane = key / 2 + key % 2 * kQueries<T> / 2;
    return (p / kQueries<T> * row_channels + c) * kQueries<T> + lane;
  }
}

// The gradients of the keys and values of a group of neighbours, gathered from the queries in whose windows they are.
template <typename T>
struct WindowGradients {
  int64_t channels, window, offsets;
  const T *const *queries, *const *grad_outputs;       // rows in the layout of WindowTokens::keys
  int64_t stride;                                      // the stride of these planes
  const T *const *grad_logits, *const *value_weights;  // (k) for each row of queries, as kept
  int64_t kept_stride;
  T *grad_key, *grad_value;  // (d, lanes)
};

// Makes tokens, in planes, unit vectors, and writes their inverse norms, (stride). A lane without a token stays 0.
template <typename T>
BIOATTN_KERNEL void make_unit(T* tokens, T* inverse_norms, int64_t channels, int64_t stride) {
  for (int64_t first = 0; first < stride; first += kLanes<T>) {
    Vector<T> squares = {};
    for (int64_t c = 0; c < channels; ++c) {
      const Vector<T> x = load(tokens + c * stride + first);
      squares += x * x;
    }
    T* inverse = inverse_norms + first;
    store(inverse, squares);
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
      const T norm = std::sqrt(inverse[lane]);
      inverse[lane] = 1 / (norm < T(kSmallestNorm) ? T(kSmallestNorm) : norm);
    }
    const Vector<T> factor = load(inverse);
    for (int64_t c = 0; c < channels; ++c) {
      T* x = tokens + c * stride + first;
      store(x, Vector<T>(load(x) * factor));
    }
  }
}

// scaled = (unit + query_embedding) * factors, for queries in planes.
template <typename T>
BIOATTN_KERNEL void scale_queries(
    T* scaled, const T* unit, const T* query_embedding, const T* factors, int64_t channels, int64_t stride) {
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t first = 0; first < stride; first += kLanes<T>) {
      const int64_t index = c * stride + first;
      store(scaled + index, Vector<T>((load(unit + index) + query_embedding[c]) * load(factors + first)));
    }
}

// Vectors as factors of products: in memory with a stride, or packed as bf16x2.
template <typename Element>
struct Factors {
  const Element* data;
  int64_t stride, number;
};

template <typename T>
BIOATTN_INLINE Factors<T> pack(const T* vectors, int64_t stride, int64_t number, T*) {
  return {vectors, stride, number};
}

// products[k] = factors . tokens[p + k], for the pooled tokens of the block from p on. Tiles compute the products
// with all `padded_pooled` tokens when it is the first block, into `memory`, (tokens, lanes).
template <typename T, typename Element>
BIOATTN_INLINE void multiply_by_block(
    Lanes<T> (&products)[kBlock], const Factors<Element>& factors, const Element* tokens, int64_t p,
    int64_t padded_pooled, T* memory) {
  if constexpr (kTiles<Element>) {
    if (p == 0)
      multiply_tiles(
          memory, tokens, factors.number, factors.data, kQueries<T>, padded_pooled, kQueries<T>, factors.number,
          false);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kBlock; ++k) products[k] = load_lanes(memory + (p + k) * kQueries<T>);
    return;
  }
  for (int64_t k = 0; k < kBlock; ++k) products[k] = Lanes<T>{};
  const Element* keys = tokens + p * factors.number;
  for (int64_t c = 0; c < factors.number; ++c, keys += kBlock) {
    const auto x = load_lanes(factors.data + c * factors.stride);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kBlock; ++k) add_product(products[k], x, keys[k]);
  }
}

// The blocks of sums that are computed at once: more of them hide the latency of bf16x2 instructions.
template <typename Element>
constexpr int64_t kBlocksAtOnce = kPacked<Element> == 2 ? 3 : 1;

// Returns the factors of a step, of one key or two (bf16x2), from compute(p) for key p, and writes them to `written`.
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

// The steps whose factors and rows stay in the L1 cache while all blocks of channels go over them.
constexpr int64_t kStepsInCache = 64;

// sums[c] += sum over steps of factors_of(step) * rows[c], for kBlocks blocks of channels; step 0 starts the sums.
template <int64_t kBlocks, typename T, typename Element, typename FactorsOf>
BIOATTN_INLINE void sum_blocks(
    T* sums, int64_t begin, int64_t end, const Element* rows, int64_t row_size, const FactorsOf& factors_of) {
  Lanes<T> sum[kBlocks * kBlock] = {};
#pragma GCC unroll 24
  for (int64_t c = 0; begin > 0 && c < kBlocks * kBlock; ++c) sum[c] = load_lanes(sums + c * kQueries<T>);
  rows += begin * row_size;
  for (int64_t step = begin; step < end; ++step, rows += row_size) {
    const auto factors = factors_of(step);
#pragma GCC unroll 24
    for (int64_t c = 0; c < kBlocks * kBlock; ++c) add_product(sum[c], factors, rows[c]);
  }
#pragma GCC unroll 24
  for (int64_t c = 0; c < kBlocks * kBlock; ++c) store(sums + c * kQueries<T>, sum[c]);
}

// The same for all steps and channels: first_time(step) gives the factors for the first blocks, again(step) for
// others. Tiles take them from `packed`, (steps, lanes).
template <typename T, typename Element, typename FirstTime, typename Again>
BIOATTN_INLINE void sum_rows(
    T* sums, int64_t steps, const Element* rows, int64_t channels, const FirstTime& first_time, const Again& again,
    Element* packed = nullptr) {
  if constexpr (kTiles<Element>) {
    for (int64_t step = 0; step < steps; ++step) store(packed + step * kQueries<T>, first_time(step));
    multiply_tiles(sums, rows, steps, packed, kQueries<T>, round_up(channels, kPadded), kQueries<T>, steps, false);
    return;
  }
  constexpr int64_t at_once = kBlocksAtOnce<Element>;
  const int64_t padded = round_up(channels, kBlock);
  for (int64_t begin = 0; begin == 0 || begin < steps; begin += kStepsInCache) {  // without a step, sums are 0
    const int64_t end = std::min(begin + kStepsInCache, steps);
    int64_t first = at_once * kBlock;
    if (first <= padded)
      sum_blocks<at_once>(sums, begin, end, rows, padded, first_time);
    else
      sum_blocks<1>(sums, begin, end, rows, padded, first_time), first = kBlock;
    for (; first + at_once * kBlock <= padded; first += at_once * kBlock)
      sum_blocks<at_once>(sums + first * kQueries<T>, begin, end, rows + first, padded, again);
    for (; first < padded; first += kBlock)
      sum_blocks<1>(sums + first * kQueries<T>, begin, end, rows + first, padded, again);
  }
}

// Transposes kLanes<float> tokens to planes, or back, in registers: elements of a token are `step` apart, tokens
// `stride`; one of the two is 1 on each side. They have at least as many channels as lanes.
template <typename Source, typename Target>
BIOATTN_KERNEL void transpose_tokens(
    const Source* source, int64_t stride, int64_t step, Target* target, int64_t target_stride, int64_t target_step,
    int64_t channels) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t begin = 0; begin < channels; begin += lanes) {
    const int64_t first = std::min(begin, channels - lanes);
    Vector<float> rows[lanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) rows[i] = load(source + i * stride + first * step);
    transpose_blocks(rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) store(target + i * target_stride + first * target_step, rows[i]);
  }
}

template <typename T>
BIOATTN_INLINE void transpose(const T* planes, int64_t stride, int64_t channels, T* rows, int64_t row_channels) {
  if constexpr (kFewRegisters && std::is_same_v<T, float>) {
    if (channels >= kLanes<float>) {
      for (int64_t lane = 0; lane < kQueries<float>; lane += kLanes<float>)
        transpose_tokens(planes + lane, stride, stride, rows + lane * row_channels, row_channels, 1, channels);
      return;
    }
  }
  for (int64_t lane = 0; lane < kQueries<T>; ++lane)
    for (int64_t c = 0; c < channels; ++c) rows[lane * row_channels + c] = planes[c * stride + lane];
}

// Adds to the sums of kKeys pooled keys and kVectors vectors of channels, of kBytes bytes each.
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
  // A tile has three vectors of channels, or fewer, and as many keys as then fill the registers.
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

// Copies a head's pooled tokens, (padded_keys, row_size), to the layouts of PooledTokensOfHead.
template <typename T>
BIOATTN_KERNEL void lay_out(const T* tokens, T*, T* blocks, int64_t padded_keys, int64_t channels, int64_t row_size) {
  for (const T* block = tokens; block < tokens + padded_keys * row_size; block += kBlock * row_size)
    for (int64_t c = 0; c < channels; ++c, blocks += kBlock)
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) blocks[k] = block[k * row_size + c];
}

#if BIOATTN_BFLOAT16
// Vectors are written beyond the end of a row: into the next one, written later, or into padding.
BIOATTN_KERNEL void lay_out(
    const float* tokens, BFloat16x2* rows, BFloat16x2* blocks, int64_t padded_keys, int64_t channels,
    int64_t row_size) {
  constexpr int64_t lanes = kLanes<float>;
  const int64_t pairs = (channels + 1) / 2;
  for (int64_t p = 0; p < padded_keys; ++p) {
    const float* token = tokens + p * row_size;
#if BIOATTN_AMX
    for (int64_t c = 0; c < row_size; c += 2 * lanes)
      store(blocks + (p * row_size + c) / 2, narrow(load(token + c), load(token + c + lanes)));
    for (int64_t c = 0; p % 2 == 0 && c < row_size; c += lanes) {
      BFloat16x2 of_keys[lanes];
      store(of_keys, make_pairs(load(token + c), load(token + row_size + c)));
      for (int64_t k = 0; k < lanes; ++k) rows[((c + k) * padded_keys + p) / 2] = of_keys[k];
    }
    continue;
#endif
    for (int64_t c = 0; p % 2 == 0 && c < row_size; c += lanes)
      store(rows + p / 2 * row_size + c, make_pairs(load(token + c), load(token + row_size + c)));
    BFloat16x2* block = blocks + p / kBlock * pairs * kBlock + p % kBlock;
    for (int64_t first = 0; first < pairs; first += lanes) {
      BFloat16x2 of_channels[lanes];
      store(of_channels, narrow(load(token + 2 * first), load(token + 2 * first + lanes)));
      for (int64_t k = 0; k < std::min(lanes, pairs - first); ++k) block[(first + k) * kBlock] = of_channels[k];
    }
  }
}

BIOATTN_INLINE Factors<BFloat16x2> pack(const float* vectors, int64_t stride, int64_t number, BFloat16x2* packed) {
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t k = 0; k < number / 2; ++k)
    store(packed + k * lanes, make_pairs(load(vectors + 2 * k * stride), load(vectors + (2 * k + 1) * stride)));
  if (number % 2)
    store(packed + number / 2 * lanes, make_pairs(load(vectors + (number - 1) * stride), Vector<float>{}));
  int64_t pairs = (number + 1) / 2;
  for (; BIOATTN_AMX && pairs % lanes != 0; ++pairs) store(packed + pairs * lanes, Bits{});
  return {packed, lanes, pairs};
}

// A bf16x2 of the rows has two neighbouring lanes.
BIOATTN_INLINE void transpose(
    const float* planes, int64_t stride, int64_t channels, BFloat16x2* rows, int64_t row_channels) {
  constexpr int64_t half = kLanes<float> / 2;
  for (int64_t c = 0; c < channels; c += 2) {
    const bool has_next = c + 1 < channels;
    BFloat16x2 pairs[2 * half];
    store(pairs, narrow(load(planes + c * stride), has_next ? load(planes + (c + 1) * stride) : Vector<float>{}));
    for (int64_t k = 0; k < half; ++k) {
      rows[k * row_channels + c] = pairs[k];
      if (has_next) rows[k * row_channels + c + 1] = pairs[half + k];
    }
  }
}

template <typename Compute>
BIOATTN_INLINE Bits factors_of_step(int64_t step, BFloat16x2* written, const Compute& compute) {
  const Vector<float> first = compute(2 * step);
  const Bits numbers = narrow(first, compute(2 * step + 1));
#if BIOATTN_AMX
  constexpr int64_t steps = kSteps<float, BFloat16x2>, size = steps * sizeof(BFloat16x2);
  for (int64_t key = 0; key < 2; ++key)
    std::memcpy(written + (2 * step + key) * kGroups * steps, (const char*)&numbers + key * size, size);
#else
  store(written + step * kLanes<float>, numbers);
#endif
  return make_pairs(numbers);
}

BIOATTN_INLINE Bits written_factors(int64_t step, const BFloat16x2* written) {
  return make_pairs(load(written + step * kLanes<float>));
}

#if BIOATTN_AMX
BIOATTN_KERNEL void add_outer_products(const OuterProducts<float, BFloat16x2> o) {
  constexpr int64_t steps = kSteps<float, BFloat16x2>;
  const int64_t used = o.groups * steps, padded = round_up(used, 2 * steps);
  for (int64_t p = 0; used < padded && p < o.pooled_keys; ++p)
    std::fill_n(o.factors + p * kGroups * steps + used, padded - used, BFloat16x2{});
  std::fill(o.rows + used * o.row_channels, o.rows + padded * o.row_channels, BFloat16x2{});
  multiply_tiles(
      o.sums, o.factors, kGroups * steps, o.rows, o.row_channels, o.pooled_keys, o.row_channels, padded, true);
}
#else
// Adds products with kChannels channels of the rows to the sums for the keys of a block.
template <int64_t kChannels>
BIOATTN_INLINE void add_products_of_channels(
    float* sums, const BFloat16x2* factors, int64_t steps, const BFloat16x2* rows, int64_t row_channels) {
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

BIOATTN_KERNEL void add_outer_products(const OuterProducts<float, BFloat16x2> o) {
  constexpr int64_t lanes = kLanes<float>, steps = kSteps<float, BFloat16x2>,
                    at_once = kBlocksAtOnce<BFloat16x2> * kBlock;
  BFloat16x2 transposed[kGroups * steps * lanes];
  for (int64_t p = 0; p < o.pooled_keys; p += lanes) {
    for (int64_t group = 0; group < o.groups; ++group) {
      // A vector of the factors holds two keys; transposed, it holds one step of all keys.
      const BFloat16x2* factors = o.factors + (group * o.pooled_keys + p) * steps;
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
#endif
#endif

// The logits of pooled key p, whose products with the queries are given; padding has no weight.
template <typename T, typename Element>
BIOATTN_INLINE Lanes<T> pooled_logit(const Group<T, Element>& g, const Lanes<T>& product, int64_t p) {
  return p < g.pooled_keys ? product + load_lanes(g.pooled_bias + g.bias_indices[p])
                           : Lanes<T>{} - std::numeric_limits<T>::infinity();
}

// products[dx] = vectors . tokens in column dx of a row of the window, for kColumns columns; both are planes.
template <int64_t kColumns, typename T, typename Element>
BIOATTN_INLINE void multiply_by_columns(T* products, const Group<T, Element>& g, const T* vectors, const T* tokens) {
  Lanes<T> product[kColumns] = {};
  for (int64_t c = 0; c < g.channels; ++c, vectors += g.queries.stride, tokens += g.neighbours.stride) {
    const Lanes<T> x = load_lanes(vectors);
#pragma GCC unroll 3
    for (int64_t dx = 0; dx < kColumns; ++dx) product[dx] += x * load_lanes(tokens + dx);
  }
#pragma GCC unroll 3
  for (int64_t dx = 0; dx < kColumns; ++dx) store(products + dx * kQueries<T>, product[dx]);
}

// The same for the whole window, (k * k, lanes); products are 0 in rows outside of the image.
template <typename T, typename Element>
BIOATTN_INLINE void multiply_by_window(
    T* products, const Group<T, Element>& g, const T* vectors, const T* const* tokens) {
  for (int64_t dy = 0; dy < g.window; ++dy, products += g.window * kQueries<T>) {
    if (tokens[dy] == nullptr) {
      std::fill_n(products, g.window * kQueries<T>, T(0));
      continue;
    }
    int64_t dx = 0;
    for (; dx + 3 <= g.window; dx += 3)
      multiply_by_columns<3>(products + dx * kQueries<T>, g, vectors, tokens[dy] + dx);
    for (; dx < g.window; ++dx) multiply_by_columns<1>(products + dx * kQueries<T>, g, vectors, tokens[dy] + dx);
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
    const T* row = tokens[dy] + c * g.neighbours.stride;
    for (int64_t dx = 0; dx < g.window; ++dx) {
      const Lanes<T> weight = load_lanes(weights + (dy * g.window + dx) * kQueries<T>);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kChannels; ++k) sum[k] += weight * load_lanes(row + k * g.neighbours.stride + dx);
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

template <typename T, typename Element>
BIOATTN_INLINE void compute_window_logits(const Group<T, Element>& g) {
  multiply_by_window(g.window_weights, g, g.queries.scaled, g.neighbours.keys);
  T* logit = g.window_weights;
  for (int64_t dy = 0; dy < g.window; ++dy)
    for (int64_t dx = 0; dx < g.window; ++dx, logit += kQueries<T>)
      store(
          logit, g.neighbours.keys[dy] == nullptr
                     ? Lanes<T>{} - std::numeric_limits<T>::infinity()
                     : load_lanes(logit) + (load_lanes(g.neighbours.outside + dx * kQueries<T>) +
                                            g.parameters.window_bias[dy * g.window + dx]));
}

// x = exp(x - shift) for `number` vectors. Returns their sum.
template <typename T>
BIOATTN_INLINE Lanes<T> exponentiate_lanes(T* x, int64_t number, const Lanes<T>& shift) {
  Lanes<T> sum = {};
  for (int64_t p = 0; p < number; ++p, x += kQueries<T>) {
    const Lanes<T> weight = exponential(load_lanes(x) - shift);
    store(x, weight);
    sum += weight;
  }
  return sum;
}

// Computes the token weights of kNumber offsets: products of the unit queries and the learnable tokens.
template <int64_t kNumber, typename T, typename Element>
BIOATTN_INLINE void compute_token_weights_of(const Group<T, Element>& g, int64_t offset) {
  Lanes<T> sum[kNumber];
#pragma GCC unroll 3
  for (int64_t k = 0; k < kNumber; ++k) sum[k] = Lanes<T>{} + g.parameters.token_bias[offset + k];
  for (int64_t c = 0; c < g.channels; ++c) {
    const Lanes<T> x = load_lanes(g.queries.unit + c * g.queries.stride);
#pragma GCC unroll 3
    for (int64_t k = 0; k < kNumber; ++k) sum[k] += x * g.parameters.tokens[c * g.offsets + offset + k];
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

// Writes the logits of the pooled keys, and returns the highest.
template <typename T, typename Element>
BIOATTN_INLINE Lanes<T> compute_pooled_logits(const Group<T, Element>& g, const Factors<Element>& query, T* target) {
  Lanes<T> highest = Lanes<T>{} - std::numeric_limits<T>::infinity();
  for (int64_t p = 0; p < g.padded_pooled; p += kBlock) {
    Lanes<T> products[kBlock];
    multiply_by_block(products, query, g.key_blocks, p, g.padded_pooled, target);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kBlock; ++k) {
      const Lanes<T> logit = pooled_logit(g, products[k], p + k);
      store(target + (p + k) * kQueries<T>, logit);
      highest = larger(highest, logit);
    }
  }
  return highest;
}

// The forward pass of a group.
template <typename T, typename Element>
BIOATTN_KERNEL void attend(const Group<T, Element> g) {
  if (g.parameters.tokens) compute_token_weights(g);
  const auto query = pack(g.queries.scaled, g.queries.stride, g.channels, g.packed);
  Lanes<T> highest = compute_pooled_logits(g, query, g.pooled_weights);
  compute_window_logits(g);
  for (int64_t offset = 0; offset < g.offsets; ++offset)
    highest = larger(highest, load_lanes(g.window_weights + offset * kQueries<T>));

  Lanes<T> sum = exponentiate_lanes(g.pooled_weights, g.padded_pooled, highest);
  sum += exponentiate_lanes(g.window_weights, g.offsets, highest);
  const auto weights = pack(g.pooled_weights, kQueries<T>, g.padded_pooled, g.packed);
  const auto weights_of = [&](int64_t step) __attribute__((always_inline)) {
    return load_lanes(weights.data + step * kQueries<T>);
  };
  sum_rows(g.output, weights.number, g.value_rows, g.channels, weights_of, weights_of, g.packed);
  const Lanes<T> scale = 1 / sum;
  store(g.logsumexp, sum);
  for (int64_t lane = 0; lane < kQueries<T>; ++lane) g.logsumexp[lane] = std::log(g.logsumexp[lane]);
  add_to(g.logsumexp, highest);

  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    T* weight = g.window_weights + offset * kQueries<T>;
    store(weight, load_lanes(weight) * scale + load_lanes(g.token_weights + offset * kQueries<T>));
  }
  for (int64_t c = 0; c < g.channels; ++c)
    store(g.output + c * kQueries<T>, load_lanes(g.output + c * kQueries<T>) * scale);
  add_window(g.output, g, g.window_weights, g.neighbours.values);
}

// sum_rows with written factors, not inlined: the caller's values in registers would displace sums.
template <typename T>
BIOATTN_KERNEL void sum_rows_of_written(T* sums, int64_t steps, const T* rows, int64_t channels, const T* written) {
  const auto factors = [&](int64_t step) __attribute__((always_inline)) { return written_factors(step, written); };
  sum_rows(sums, steps, rows, channels, factors, factors);
}

// The backward pass of a group but for keys and values, whose factors go to `window` and `outer`.
template <typename T, typename Element>
BIOATTN_KERNEL void differentiate(const GradientGroup<T, Element> d) {
  const Group<T, Element>& g = d.forward;
  if (g.parameters.tokens) compute_token_weights(g);
  compute_window_logits(g);
  const Lanes<T> shift = load_lanes(g.logsumexp);
  Lanes<T> sum = exponentiate_lanes(g.window_weights, g.offsets, shift);
  // The gradient of a logit is weight * (gradient of the weight - mean of these under the weights).
  Lanes<T> mean = {};
  multiply_by_window(d.grad_token_weights, g, d.grad_output, g.neighbours.values);
  for (int64_t index = 0; index < g.offsets * kQueries<T>; index += kQueries<T>)
    mean += load_lanes(g.window_weights + index) * load_lanes(d.grad_token_weights + index);
  const auto query = pack(g.queries.scaled, g.queries.stride, g.channels, g.packed);
  const auto grad_output = pack(d.grad_output, g.queries.stride, g.channels, g.packed + query.number * kQueries<T>);
  const int64_t pooled = g.padded_pooled;
  // The weights of the pooled keys and their gradients: where registers are few, each step has its own loop, with the
  // memory of the outer products as workspace; else a block goes through all steps in registers.
  const T *weights = g.pooled_weights, *gradients = d.grad_pooled_logits;
  if constexpr (kFewRegisters) {
    T *of_weights = d.outer.of_values, *of_gradients = d.outer.of_keys;
    compute_pooled_logits(g, query, of_weights);
    sum += exponentiate_lanes(of_weights, pooled, shift);
    T *weight = of_weights, *gradient = of_gradients;
    for (int64_t p = 0; p < pooled; p += kBlock) {
      Lanes<T> products[kBlock];
      multiply_by_block(products, grad_output, g.value_blocks, p, pooled, d.grad_pooled_logits);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k, weight += kQueries<T>, gradient += kQueries<T>) {
        mean += load_lanes(weight) * products[k];
        store(gradient, products[k]);
      }
    }
    weights = of_weights, gradients = of_gradients;
  } else {
    for (int64_t p = 0; p < pooled; p += kBlock) {
      Lanes<T> products[kBlock], products_with_values[kBlock];
      multiply_by_block(products, query, g.key_blocks, p, pooled, g.pooled_weights);
      multiply_by_block(products_with_values, grad_output, g.value_blocks, p, pooled, d.grad_pooled_logits);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kBlock; ++k) {
        const Lanes<T> weight = exponential(pooled_logit(g, products[k], p + k) - shift);
        sum += weight;
        mean += weight * products_with_values[k];
        store(g.pooled_weights + (p + k) * kQueries<T>, weight);
        store(d.grad_pooled_logits + (p + k) * kQueries<T>, products_with_values[k]);
      }
#pragma GCC unroll 8
      for (int64_t step = 0; step < kBlock / kPacked<Element>; ++step)
        factors_of_step(
            p / kPacked<Element> + step, d.outer.of_values, [&](int64_t key) __attribute__((always_inline)) {
              return load_lanes(g.pooled_weights + key * kQueries<T>);
            });
    }
  }
  // The scale makes the weights add up to 1, so that gradients cancel in spite of rounding; 0 where no query is.
  const Lanes<T> scale = where_less(shift, std::numeric_limits<T>::infinity(), 1 / sum);
  mean *= scale;
  const Lanes<T> scaled_mean = mean * scale;
  T* grad_bias = d.grad_pooled_bias;
  const int64_t *bias_indices = g.bias_indices, pooled_keys = g.pooled_keys, steps = pooled / kPacked<Element>;
  Element* key_factors = d.outer.of_keys;
  const auto gradient_of_logit = [&](int64_t p) __attribute__((always_inline)) {
    const int64_t index = p * kQueries<T>;
    const Lanes<T> gradient = load_lanes(weights + index) * (load_lanes(gradients + index) * scale - scaled_mean);
    if (p < pooled_keys) add_to(grad_bias + bias_indices[p], gradient);
    return gradient;
  };
  const auto factors_at = [&](int64_t step) __attribute__((always_inline)) {
    return factors_of_step(step, key_factors, gradient_of_logit);
  };
  if constexpr (kFewRegisters) {
    for (int64_t p = 0; p < pooled; ++p) factors_at(p);
    sum_rows_of_written(d.grad_query, steps, g.key_rows, g.channels, key_factors);
  } else {
    sum_rows(
        d.grad_query, steps, g.key_rows, g.channels, factors_at,
        [&](int64_t step) __attribute__((always_inline)) { return written_factors(step, key_factors); }, g.packed);
  }
  for (int64_t offset = 0; offset < g.offsets; ++offset) {
    const int64_t index = offset * kQueries<T>;
    const Lanes<T> weight = load_lanes(g.window_weights + index) * scale,
                   grad_token = load_lanes(d.grad_token_weights + index);
    const Lanes<T> gradient = weight * (grad_token - mean);
    store(d.grad_window_logits + index, gradient);
    store(d.kept_logits + offset * d.kept_stride, gradient);
    store(d.kept_weights + offset * d.kept_stride, Lanes<T>(weight + load_lanes(g.token_weights + index)));
    add_to(d.sums.window_bias + index, gradient);
    add_to(d.sums.token_bias + index, grad_token);
  }
  add_window(d.grad_query, g, d.grad_window_logits, g.neighbours.keys);
  transpose(d.grad_output, g.queries.stride, g.channels, d.outer.grad_outputs, d.outer.row_channels);
  transpose(g.queries.scaled, g.queries.stride, g.channels, d.outer.queries, d.outer.row_channels);
}

// Turns the gradient, (d, lanes), of x / max(norm, kSmallestNorm) into that of x.
template <typename T>
BIOATTN_KERNEL void differentiate_norm(
    T* gradient, const T* unit, int64_t stride, const T* inverse_norms, int64_t channels) {
  const Lanes<T> inverse = load_lanes(inverse_norms);
  Lanes<T> along = {};
  for (int64_t c = 0; c < channels; ++c)
    along += load_lanes(gradient + c * kQueries<T>) * load_lanes(unit + c * stride);
  along = where_less(inverse, T(kInverseOfSmallestNorm), along);
  for (int64_t c = 0; c < channels; ++c) {
    T* x = gradient + c * kQueries<T>;
    store(x, inverse * (load_lanes(x) - load_lanes(unit + c * stride) * along));
  }
}

// Turns the gradient of scaled queries into that of the queries, and adds to the sums for the parameters.
template <typename T, typename Element>
BIOATTN_KERNEL void differentiate_scaling(const GradientGroup<T, Element> d) {
  const Group<T, Element>& g = d.forward;
  const Lanes<T> factor = load_lanes(g.queries.factors), log_length = load_lanes(g.queries.log_lengths);
  Lanes<T> scale_sum = {};
  for (int64_t c = 0; c < g.channels; ++c) {
    T* target = d.grad_query + c * kQueries<T>;
    const Lanes<T> gradient = load_lanes(target), unit = load_lanes(g.queries.unit + c * g.queries.stride);
    scale_sum += gradient * (unit + g.parameters.query_embedding[c]);
    Lanes<T> sum = gradient * factor;
    add_to(d.sums.query_embedding + c * kQueries<T>, sum);
    for (int64_t offset = 0; offset < g.offsets; ++offset) {
      const int64_t index = c * g.offsets + offset;
      const Lanes<T> grad_token = load_lanes(d.grad_token_weights + offset * kQueries<T>);
      sum += grad_token * g.parameters.tokens[index];
      add_to(d.sums.tokens + index * kQueries<T>, grad_token * unit);
    }
    store(target, sum);
  }
  add_to(d.sums.scale, scale_sum * log_length);
  differentiate_norm(d.grad_query, g.queries.unit, g.queries.stride, g.queries.inverse_norms, g.channels);
}

// A row of the table in a sum of biases: where it begins in the table of a head, and its weight.
template <typename T>
struct Summand {
  int64_t offset;
  T weight;
};

// sums = the weighted rows of a table, for some neighbouring queries.
template <typename T>
BIOATTN_KERNEL void sum_biases(T* sums, const T* table, const Summand<T>* summands, int64_t number, int64_t lanes) {
  for (int64_t lane = 0; lane < lanes; lane += kQueries<T>) {
    Lanes<T> sum = {};
    for (int64_t k = 0; k < number; ++k) sum += load_lanes(table + summands[k].offset + lane) * summands[k].weight;
    store(sums + lane, sum);
  }
}

// Adds the gradients of the sums to those of the rows.
template <typename T>
BIOATTN_KERNEL void add_to_summands(
    T* grad_table, const T* gradients, const Summand<T>* summands, int64_t number, int64_t lanes) {
  for (int64_t lane = 0; lane < lanes; lane += kQueries<T>) {
    const Lanes<T> gradient = load_lanes(gradients + lane);
    for (int64_t k = 0; k < number; ++k)
      add_to(grad_table + summands[k].offset + lane, gradient * summands[k].weight);
  }
}

// Gathers the gradients of kChannels channels from c on: of the keys, of the values, or of both.
template <int64_t kChannels, bool kOfKeys, bool kOfValues, typename T>
BIOATTN_INLINE void gather_gradients_of_channels(const WindowGradients<T>& g, int64_t c) {
  Lanes<T> key[kChannels] = {}, value[kChannels] = {};
  for (int64_t dy = 0; dy < g.window; ++dy) {
    if (g.queries[dy] == nullptr) continue;
    const T *queries = g.queries[dy] + c * g.stride, *grad_outputs = g.grad_outputs[dy] + c * g.stride;
    for (int64_t dx = 0; dx < g.window; ++dx) {
      // In the window of that query, this token has the opposite offset.
      const int64_t index = (g.offsets - 1 - dy * g.window - dx) * g.kept_stride + dx;
      const Lanes<T> grad_logit = load_lanes(g.grad_logits[dy] + index),
                     weight = load_lanes(g.value_weights[dy] + index);
#pragma GCC unroll 6
      for (int64_t k = 0; k < kChannels; ++k) {
        if (kOfKeys) key[k] += grad_logit * load_lanes(queries + k * g.stride + dx);
        if (kOfValues) value[k] += weight * load_lanes(grad_outputs + k * g.stride + dx);
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

}  // namespace
}  // namespace bioattn_mm::BIOATTN_ISA::aggregated_attention
