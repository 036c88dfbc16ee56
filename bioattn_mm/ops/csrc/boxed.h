// Functions of tensors as PyTorch's dispatcher calls them, with arguments and results on a stack.
#pragma once

#include "tensor.h"

#include <torch/csrc/stable/library.h>

namespace bioattn_mm {

template <typename T, typename = void>
constexpr size_t kTensorsOf = 0;
template <typename T>
constexpr size_t kTensorsOf<T, std::void_t<decltype(T::kTensors)>> = T::kTensors;

// Takes the next argument, or the T::kTensors tensors of a struct, from the stack. The callee owns them.
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

// The boxed form of `kernel`, after `check`, which raises an error where the arguments do not fit.
template <auto kernel, auto check = nullptr, typename Signature = decltype(kernel)>
struct Boxed;

template <auto kernel, auto check, typename Result, typename... Types>
struct Boxed<kernel, check, Result (*)(Types...)> {
  static void call(StableIValue* stack, uint64_t, uint64_t) {
    [[maybe_unused]] StableIValue* next = stack;
    const std::tuple<std::decay_t<Types>...> arguments{take<std::decay_t<Types>>(next)...};
    if constexpr (!std::is_same_v<decltype(check), std::nullptr_t>) std::apply(check, arguments);
    if constexpr (std::is_void_v<Result>)
      std::apply(kernel, arguments);
    else
      put(stack, std::apply(kernel, arguments));
  }
};

template <auto kernel, auto check = nullptr>
constexpr auto boxed = Boxed<kernel, check>::call;

}  // namespace bioattn_mm
