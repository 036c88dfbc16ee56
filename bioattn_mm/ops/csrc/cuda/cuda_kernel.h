// Functions that launch kernels, as operators call them.
#pragma once

#include "../tensor.h"
#include "cuda/launch.h"

namespace bioattn_mm {

// Calls a function with dense arguments, on the device of the first.
template <auto function, typename Signature = decltype(function)>
struct OnCuda;

template <auto function, typename Result, typename First, typename... Types>
struct OnCuda<function, Result (*)(First, Types...)> {
  static Result call(First first, Types... others) {
    const DeviceGuard guard(first.device());
    return function(dense(first), dense(others)...);
  }
};

template <auto function>
constexpr auto cuda_kernel = OnCuda<function>::call;

}  // namespace bioattn_mm
