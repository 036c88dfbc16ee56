// Functions of tensors as PyTorch's dispatcher calls them, with arguments and results on a stack.
#pragma once

#include "tensor.h"

#include <torch/csrc/stable/library.h>

namespace bioattn_mm {

template <typename T, typename = void>
constexpr size_t kTensorsOf = 0;
template <typename T>
constexpr size_t kTensorsOf<T, std::void_t<decltype(T::kTensors)>> = T::kTensors;
template <size_t number>
constexpr size_t kTensorsOf<std::array<Tensor, number>> = number;

// Takes the next argument, or the tensors of an array or of a struct, from the stack. The callee owns them.
template <typename T>
T take(StableIValue*& stack) {
  using torch::stable::detail::to;
  if constexpr (kTensorsOf<T> > 0) {
    const auto tensors = [&](auto... each) { return T{((void)each, take<Tensor>(stack))...}; };
    return std::apply(tensors, std::array<int, kTensorsOf<T>>());
  } else if constexpr (std::is_base_of_v<Tensor, T>) {
    return Tensor(to<torch::stable::Tensor>(*stack++));
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    auto tensor = to<std::optional<torch::stable::Tensor>>(*stack++);
    return tensor ? std::optional<Tensor>(*std::move(tensor)) : std::nullopt;
  } else {
    return to<T>(*stack++);
  }
}

template <typename T>
void put(StableIValue* stack, const T& result) {
  *stack = on_stack(result);
}
template <typename... Types>
void put(StableIValue* stack, const std::tuple<Types...>& results) {
  std::apply([&](const auto&... each) { (put(stack++, each), ...); }, results);
}
template <size_t number>
void put(StableIValue* stack, const std::array<Tensor, number>& results) {
  for (const Tensor& result : results) put(stack++, result);
}

// A function that raises an error where the arguments do not fit, by `check`, and then calls `kernel`.
template <auto kernel, auto check, typename Signature = decltype(kernel)>
struct Checked;

template <auto kernel, auto check, typename Result, typename... Types>
struct Checked<kernel, check, Result (*)(Types...)> {
  static Result call(Types... arguments) {
    check(arguments...);
    return kernel(arguments...);
  }
};

template <auto kernel, auto check>
constexpr auto checked = Checked<kernel, check>::call;

// The boxed form of a function.
template <auto function, typename Signature = decltype(function)>
struct Boxed;

template <auto function, typename Result, typename... Types>
struct Boxed<function, Result (*)(Types...)> {
  static void call(StableIValue* stack, uint64_t, uint64_t) {
    [[maybe_unused]] StableIValue* next = stack;
    const std::tuple<std::decay_t<Types>...> arguments{take<std::decay_t<Types>>(next)...};
    if constexpr (std::is_void_v<Result>)
      std::apply(function, arguments);
    else
      put(stack, std::apply(function, arguments));
  }
};

template <auto function>
constexpr auto boxed = Boxed<function>::call;

}  // namespace bioattn_mm
