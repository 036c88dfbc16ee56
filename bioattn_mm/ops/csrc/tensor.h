// Tensors of PyTorch's stable ABI with ATen's names, and other parts of PyTorch. No header of ATen or c10 is
// included: the library runs with every torch from 2.10 on.
#pragma once

#include "old_linux.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace bioattn_mm {

using torch::headeronly::ScalarType;
using torch::stable::Device;
using Span = torch::headeronly::IntHeaderOnlyArrayRef;  // a view of integers, such as sizes

constexpr ScalarType kHalf = ScalarType::Half, kBFloat16 = ScalarType::BFloat16, kFloat = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double, kInt = ScalarType::Int, kLong = ScalarType::Long;
constexpr ScalarType kBool = ScalarType::Bool;

template <typename T>
constexpr ScalarType scalar_type_of = c10::CppTypeToScalarType<T>::value;

inline bool is_half_precision(ScalarType dtype) { return dtype == kHalf || dtype == kBFloat16; }

// The quotient of an integer that is not negative and a positive one, rounded up.
template <typename Integer, typename Divisor>
constexpr Integer divide_up(Integer value, Divisor divisor) {
  return (value + divisor - 1) / divisor;
}

// The next multiple, or the value itself if it is one.
template <typename Integer, typename Divisor>
constexpr Integer round_up(Integer value, Divisor multiple) {
  return divide_up(value, multiple) * multiple;
}

// Texts are made without streams, which write no numbers in a library that has a C++ library of its own inside.
inline std::string text_of_one(const char* text) { return text; }
inline std::string text_of_one(const std::string& text) { return text; }
inline std::string text_of_one(ScalarType dtype) { return torch::headeronly::toString(dtype); }
inline std::string text_of_one(int64_t number) { return std::to_string(number); }

template <typename... Parts>
std::string text_of(const Parts&... parts) {
  return (std::string() + ... + text_of_one(parts));
}

inline std::string text_of_sizes(Span sizes) {
  std::string text = "[";
  for (size_t axis = 0; axis < sizes.size(); ++axis) text += (axis ? ", " : "") + std::to_string(sizes[axis]);
  return text + "]";
}

inline std::string text_of_dtypes(std::initializer_list<ScalarType> dtypes) {
  std::string names;
  for (const ScalarType dtype : dtypes) names += text_of(names.empty() ? "[" : ", ", dtype);
  return names + "]";
}

inline std::string text_of_device(const Device& device) {
  const std::string name = device.is_cpu() ? "cpu" : device.is_cuda() ? "cuda" : "another device";
  return device.has_index() ? name + ":" + std::to_string(device.index()) : name;
}

// Raises an error that Python sees as a ValueError, from torch 2.15 on as a RuntimeError.
template <typename... Parts>
void check_value(bool condition, const Parts&... parts) {
  if (!condition) throw std::invalid_argument(text_of(parts...));
}

// The dtype and device of a new tensor.
struct Options {
  Options dtype(ScalarType other) const { return {other, device}; }

  ScalarType scalar_type;
  Device device;
};

inline Options on_cpu(ScalarType dtype) { return {dtype, Device(torch::headeronly::kCPU)}; }

inline std::vector<int64_t> contiguous_strides(Span sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t axis = sizes.size(); axis-- > 0; stride *= std::max<int64_t>(sizes[axis], 1)) strides[axis] = stride;
  return strides;
}

// A tensor, which may be undefined.
class Tensor : public torch::stable::Tensor {
 public:
  Tensor() = default;
  Tensor(torch::stable::Tensor tensor) : torch::stable::Tensor(std::move(tensor)) {}

  Options options() const { return {scalar_type(), device()}; }
  int64_t nbytes() const { return numel() * static_cast<int64_t>(element_size()); }

  Tensor contiguous() const { return is_contiguous() ? *this : Tensor(torch::stable::contiguous(*this)); }
  Tensor to(ScalarType dtype) const {
    return scalar_type() == dtype ? *this : Tensor(torch::stable::to(*this, dtype));
  }
  Tensor clone() const { return torch::stable::clone(*this); }
  Tensor sum(Span axes) const { return torch::stable::sum(*this, axes); }
  Tensor reshape(Span sizes) const { return contiguous().view(sizes); }
  // Copies the tensor if no view has these axes as one.
  Tensor flatten(int64_t first = 0, int64_t last = -1) const { return torch::stable::flatten(*this, first, last); }

  // Views, which do not go through PyTorch's dispatcher: it would take several times as long.
  Tensor view(Span sizes) const { return alias(sizes, contiguous_strides(sizes)); }  // of a contiguous tensor
  Tensor permute(Span axes) const {
    std::vector<int64_t> new_sizes, new_strides;
    for (const int64_t axis : axes) new_sizes.push_back(size(axis)), new_strides.push_back(stride(axis));
    return alias(new_sizes, new_strides);
  }
  Tensor narrow(int64_t axis, int64_t begin, int64_t length) const {
    std::vector<int64_t> new_sizes = sizes().vec();
    new_sizes[axis] = length;
    return alias(new_sizes, strides(), begin * stride(axis));
  }
  // (B, H, W, ...) as (B, 1, H * W, ...), a copy where no view has these axes as one.
  Tensor as_one_row() const {
    const bool is_one = size(1) == 1 || size(2) == 1 || stride(1) == size(2) * stride(2);
    const Tensor rows = is_one ? *this : contiguous();
    std::vector<int64_t> new_sizes = sizes().vec(), new_strides = rows.strides().vec();
    if (new_sizes[2] == 1) new_strides[2] = new_strides[1];  // PyTorch allows any stride of a single column
    new_sizes[2] *= new_sizes[1], new_sizes[1] = 1;
    return rows.alias(new_sizes, new_strides);
  }
  Tensor select(int64_t axis, int64_t index) const {
    std::vector<int64_t> new_sizes = sizes().vec(), new_strides = strides().vec();
    new_sizes.erase(new_sizes.begin() + axis), new_strides.erase(new_strides.begin() + axis);
    return alias(new_sizes, new_strides, index * stride(axis));
  }

 private:
  // A view of the same memory with other sizes and strides, from the element `offset` on.
  Tensor alias(Span sizes, Span strides, int64_t offset = 0) const {
    AtenTensorHandle handle;
    TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(
        get(), static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), offset, &handle));
    return torch::stable::Tensor(handle);
  }
};

// Tokens (B, H, W, ...) that kernels read with a stride from token to token, as a part of one product has it.
class StridedTokens : public Tensor {
 public:
  StridedTokens() = default;
  StridedTokens(Tensor tensor) : Tensor(std::move(tensor)) {}
};

// An uninitialised contiguous tensor.
inline Tensor empty(Span sizes, const Options& options) {
  const std::vector<int64_t> strides = contiguous_strides(sizes);
  const auto shim = [](auto value) { return torch::stable::detail::to<int32_t>(torch::stable::detail::from(value)); };
  AtenTensorHandle handle;
  const auto failed = aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), shim(options.scalar_type),
      shim(options.device.type()), options.device.index(), &handle);
  if (failed)
    throw std::runtime_error(text_of(
        "bioattn_mm: out of memory: no room for ", options.scalar_type, text_of_sizes(sizes), " on ",
        text_of_device(options.device)));
  return torch::stable::Tensor(handle);
}

inline Tensor zeros(Span sizes, const Options& options) {
  const Tensor tensor = empty(sizes, options);
  TORCH_ERROR_CODE_CHECK(aoti_torch_zero_(tensor.get()));
  return tensor;
}

// Contiguous tensors of the shape and dtype of another, whatever its strides.
inline Tensor empty_like(const Tensor& tensor) { return empty(tensor.sizes(), tensor.options()); }
inline Tensor zeros_like(const Tensor& tensor) { return zeros(tensor.sizes(), tensor.options()); }

// An argument or a result on the stack of PyTorch's dispatcher.
template <typename T>
StableIValue on_stack(const T& value) {
  using Stable = std::conditional_t<std::is_base_of_v<Tensor, T>, torch::stable::Tensor, T>;
  return torch::stable::detail::from(static_cast<const Stable&>(value));
}
inline StableIValue on_stack(const std::optional<Tensor>& value) {
  return torch::stable::detail::from(value ? std::optional<torch::stable::Tensor>(*value) : std::nullopt);
}

// Calls an operator of PyTorch by its name and all arguments of its schema.
template <size_t results, typename... Arguments>
std::array<Tensor, results> call_for(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, std::max(results, sizeof...(Arguments))> stack{on_stack(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, results> tensors;
  for (size_t i = 0; i < results; ++i) tensors[i] = torch::stable::detail::to<torch::stable::Tensor>(stack[i]);
  return tensors;
}

// The same of an operator with one result.
template <typename... Arguments>
Tensor call(const char* name, const char* overload, const Arguments&... arguments) {
  return call_for<1>(name, overload, arguments...)[0];
}

// Calls function(tensor) for each tensor of a struct, and returns the struct of the results.
template <typename Tensors, typename Function>
Tensors map(const Tensors& tensors, const Function& function) {
  return tensors.apply([&](const auto&... each) { return Tensors{function(each)...}; });
}

// Arguments as kernels read them: contiguous tensors, aligned to sixteen bytes for the widest loads of a GPU.
inline Tensor dense(const Tensor& tensor) {
  const Tensor contiguous = tensor.defined() ? tensor.contiguous() : tensor;
  const bool aligned = !tensor.defined() || reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return aligned ? contiguous : contiguous.clone();
}
// Tokens as they are where a token is contiguous, tokens have one stride, and both are aligned, else a copy.
inline StridedTokens dense(const StridedTokens& tokens) {
  const int64_t token_stride = tokens.stride(2);
  bool fits = token_stride < 1 << 28 && token_stride * static_cast<int64_t>(tokens.element_size()) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(tokens.const_data_ptr()) % 16 == 0;
  for (int64_t axis = tokens.dim() - 1, stride = 1; axis >= 0; stride *= tokens.size(axis--)) {
    if (axis == 2) fits = fits && token_stride >= stride, stride = token_stride;
    fits = fits && tokens.stride(axis) == stride;
  }
  // The view gives a row of a single column the usual stride: PyTorch allows any stride there.
  return fits ? tokens : StridedTokens(dense(static_cast<const Tensor&>(tokens)).view(tokens.sizes()));
}
inline std::optional<Tensor> dense(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(dense(*tensor)) : tensor;
}
inline int64_t dense(int64_t number) { return number; }
inline double dense(double number) { return number; }
inline bool dense(bool condition) { return condition; }

// Converts to a pointer of any type to the tensor's data, or null; a type of numbers must be the tensor's dtype.
struct DataOf {
  template <typename Pointer>
  operator Pointer() const {
    using Target = std::remove_pointer_t<Pointer>;
    using T = std::remove_const_t<Target>;
    if (!tensor.defined()) return nullptr;
    if constexpr (!std::is_arithmetic_v<T> && !std::is_same_v<T, c10::Half> && !std::is_same_v<T, c10::BFloat16>)
      return static_cast<Pointer>(tensor.mutable_data_ptr());
    else if constexpr (std::is_const_v<Target>)
      return tensor.const_data_ptr<T>();
    else
      return tensor.mutable_data_ptr<T>();
  }

  const Tensor& tensor;
};

// An argument of a kernel launch as the kernel's parameter: for a tensor the pointer to its data, or null.
template <typename Parameter, typename Argument>
Parameter kernel_argument(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, std::optional<Tensor>>)
    return DataOf{argument ? *argument : Tensor()};
  else if constexpr (std::is_base_of_v<Tensor, Argument>)
    return DataOf{argument};
  else
    return argument;
}

// Pads the ends of axes: two widths each, from the last axis on. Contiguous, while PyTorch's may be channels-last.
inline Tensor pad(const Tensor& tensor, Span widths, double value = 0) {
  return Tensor(torch::stable::pad(tensor, widths, "constant", value)).contiguous();
}

// Calls function(begin, end) for ranges that together are the integers from `begin` to before `end`, in parallel.
template <typename Function>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Function& function) {
  torch::stable::parallel_for(begin, end, grain, function);
}

// Calls function(T()) with the one of Types that has the dtype.
template <typename... Types, typename Function>
void dispatch(ScalarType dtype, const Function& function) {
  const bool is_known = ((dtype == scalar_type_of<Types> && (function(Types()), true)) || ...);
  check_value(is_known, "this operator takes ", text_of_dtypes({scalar_type_of<Types>...}), ", got ", dtype);
}

}  // namespace bioattn_mm
