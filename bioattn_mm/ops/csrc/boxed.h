// Functions of tensors as PyTorch's dispatcher calls them, with arguments and results on a stack.
#pragma once

#include "tensor.h"

#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace bioattn_mm {

// The next argument, and for a struct of T::kTensors tensors the next ones. They belong to the caller from then on.
template <typename T>
T read(StableIValue*& stack);

template <typename T, size_t... i>
T read_tensors(StableIValue*& stack, std::index_sequence<i...>) {
  return T{((void)i, read<Tensor>(stack))...};
}

template <typename T, typename = void>
constexpr size_t kTensorsOf = 0;
template <typename T>
constexpr size_t kTensorsOf<T, std::void_t<decltype(T::kTensors)>> = T::kTensors;

template <typename T>
T read(StableIValue*& stack) {
  using torch::stable::detail::to;
  if constexpr (kTensorsOf<T> > 0) {
    return read_tensors<T>(stack, std::make_index_sequence<kTensorsOf<T>>());
  } else if constexpr (std::is_same_v<T, Tensor>) {
    return to<torch::stable::Tensor>(*stack++);
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    auto tensor = to<std::optional<torch::stable::Tensor>>(*stack++);
    return tensor ? std::optional<Tensor>(*std::move(tensor)) : std::nullopt;
  } else {
    return to<T>(*stack++);
  }
}

template <typename T>
void write(StableIValue* stack, const T& result) {
  if constexpr (std::is_same_v<T, Tensor>)
    *stack = torch::stable::detail::from(static_cast<const torch::stable::Tensor&>(result));
  else
    *stack = torch::stable::detail::from(result);
}

template <typename... Types>
void write(StableIValue* stack, const std::tuple<Types...>& results) {
  std::apply([&](const auto&... each) { (write(stack++, each), ...); }, results);
}

template <auto function, typename Signature = decltype(function)>
struct Boxed;

template <auto function, typename Result, typename... Types>
struct Boxed<function, Result (*)(Types...)> {
  static void call(StableIValue* stack, uint64_t, uint64_t) {
    [[maybe_unused]] StableIValue* next = stack;
    std::tuple<std::decay_t<Types>...> arguments{read<std::decay_t<Types>>(next)...};
    if constexpr (std::is_void_v<Result>)
      std::apply(function, arguments);
    else
      write(stack, std::apply(function, arguments));
  }
};

template <auto function>
constexpr auto boxed = Boxed<function>::call;

}  // namespace bioattn_mm
