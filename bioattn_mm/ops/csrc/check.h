// Checks of an operator's tensors: kernels take all sizes from one or two tensors, and read others without a check.
#pragma once

#include "tensor.h"

namespace bioattn_mm {

// The dtype of parameters and of statistics beside tokens of a dtype.
inline ScalarType full_precision(ScalarType dtype) { return is_half_precision(dtype) ? kFloat : dtype; }

// On the CPU half precision is a format of storage: the arithmetic is float32.
inline Tensor at_least_float(const Tensor& tensor) { return tensor.to(full_precision(tensor.scalar_type())); }

// The sizes of tokens (B, H, W, heads, d) and of windows of k x k tokens: window = k, offsets = k * k.
template <typename Integer>
struct WindowSizes {
  WindowSizes(const Tensor& tokens, int64_t offsets)
      : batch(tokens.size(0)),
        height(tokens.size(1)),
        width(tokens.size(2)),
        heads(tokens.size(3)),
        channels(tokens.size(4)),
        window(std::lround(std::sqrt(static_cast<double>(offsets)))),
        offsets(offsets) {}

  Integer batch, height, width, heads, channels, window, offsets;
};

// The tensors of an operator, which have to fit the first one.
class ArgumentChecks {
 public:
  // Raises a ValueError unless the first tensor has the dimensions of `shape`, and one of the dtypes.
  ArgumentChecks(
      const char* operator_name, const char* name, const Tensor& first, int64_t dimensions, const char* shape,
      std::initializer_list<ScalarType> dtypes = {kHalf, kBFloat16, kFloat, kDouble})
      : operator_name_(operator_name), name_(name), first_(first) {
    if (is_dense(first) && first.dim() == dimensions &&
        std::find(dtypes.begin(), dtypes.end(), first.scalar_type()) != dtypes.end())
      return;
    check_value(
        false, operator_name, ": ", name, " must be ", shape, " of ", text_of_dtypes(dtypes), ", got ", about(first));
  }

  // Raises a ValueError unless a tensor has these sizes (-1: any), the dtype, by default the first's, and its device.
  void check(const char* name, const Tensor& tensor, Span sizes, std::optional<ScalarType> other_dtype = {}) const {
    const ScalarType dtype = other_dtype.value_or(first_.scalar_type());
    if (is_dense(tensor) && tensor.scalar_type() == dtype && tensor.device() == first_.device() &&
        has_sizes(tensor, sizes))
      return;
    check_value(
        false, operator_name_, ": ", name, " must be ", dtype, text_of_sizes(sizes), " on ",
        text_of_device(first_.device()), " to fit ", name_, " ", about(first_), ", got ", about(tensor));
  }

  // Raises a ValueError unless the last size of the tensor `name` is that of a window: the square of an odd number.
  void check_offsets(const char* name, int64_t offsets) const {
    const int64_t window = std::lround(std::sqrt(static_cast<double>(offsets)));
    check_value(
        window % 2 == 1 && window * window == offsets, operator_name_, ": the last size of ", name,
        " must be the square of an odd number, got ", offsets);
  }

  // Raises a ValueError unless each pair has one or more rows of a bias, (*pairs, n), and weights, (*pairs, n - 1).
  void check_rows(
      std::array<const char*, 2> names, const Tensor& rows, const Tensor& weights, std::array<int64_t, 2> pairs,
      ScalarType dtype) const {
    check(names[0], rows, {pairs[0], pairs[1], -1}, kLong);
    check_value(rows.size(2) > 0, operator_name_, ": ", names[0], " must have a row for each pair, got none");
    check(names[1], weights, {pairs[0], pairs[1], rows.size(2) - 1}, dtype);
  }

 private:
  static bool is_dense(const Tensor& tensor) {
    return tensor.defined() && tensor.layout() == torch::headeronly::Layout::Strided;
  }

  static bool has_sizes(const Tensor& tensor, Span sizes) {
    const Span actual = tensor.sizes();
    return std::equal(actual.begin(), actual.end(), sizes.begin(), sizes.end(), [](int64_t size, int64_t wanted) {
      return wanted == -1 || size == wanted;
    });
  }

  static std::string about(const Tensor& tensor) {
    if (!tensor.defined()) return "no tensor";
    return text_of(tensor.scalar_type(), text_of_sizes(tensor.sizes()), " on ", text_of_device(tensor.device()));
  }

  const char *operator_name_, *name_;
  const Tensor& first_;
};

// Raises an IndexError unless all indices are from 0 on and below `size`; they are contiguous, int64, on the CPU.
inline void check_indices(const char* name, const Tensor& indices, int64_t size, const char* of) {
  const int64_t *first = indices.const_data_ptr<int64_t>(), *last = first + indices.numel();
  const int64_t* other = std::find_if(first, last, [&](int64_t k) { return k < 0 || k >= size; });
  if (other != last)
    throw std::out_of_range(text_of(name, " must be 0 to ", size - 1, ", the ", of, ", got ", *other));
}

// The uninitialised rounding of an output (see RoundedForward), without elements where none is needed.
inline Tensor empty_rounding(const Tensor& query, bool for_backward) {
  const bool rounds = for_backward && is_half_precision(query.scalar_type());
  return rounds ? empty_like(query) : empty({0}, query.options());
}

inline void check_rounding(const ArgumentChecks& arguments, const Tensor& rounding, const Tensor& query) {
  const bool is_rounded = is_half_precision(query.scalar_type());
  arguments.check("rounding", rounding, is_rounded ? query.sizes() : Span({0}));
}

}  // namespace bioattn_mm
