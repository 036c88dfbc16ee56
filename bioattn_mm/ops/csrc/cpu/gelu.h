// GELU and the functions of the normal distribution that it consists of, for vectors.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA {

// The type of the arithmetic: float32, or float64 for data in float64.
template <typename Data>
using Arithmetic = std::conditional_t<std::is_same_v<Data, double>, double, float>;

// 1 / x; for bfloat16 with a relative error of 6e-5.
BIOATTN_INLINE Vector<float> inverse(const Vector<float>& x) {
#if BIOATTN_BFLOAT16
  return (Vector<float>)_mm512_rcp14_ps((__m512)x);
#else
  return 1 / x;
#endif
}

// The normal distribution and its density, by Abramowitz and Stegun's 7.1.26: error 2e-7, or 5e-5 for bfloat16.
BIOATTN_INLINE void normal_distribution(const Vector<float>& x, Vector<float>& cumulative, Vector<float>& density) {
  const Vector<float> half = 0.70710678f * (x < 0 ? -x : x);
  const Vector<float> exponent = exponential(-half * half);
  const Vector<float> t = inverse(1 + 0.3275911f * half);
  const Vector<float> p =
      (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const Vector<float> tail = 0.5f * p * t * exponent;
  cumulative = x < 0 ? tail : 1 - tail;
  density = 0.39894228f * exponent;
}

BIOATTN_INLINE void normal_distribution(
    const Vector<double>& x, Vector<double>& cumulative, Vector<double>& density) {
  for (int64_t lane = 0; lane < kLanes<double>; ++lane)
    cumulative[lane] = 0.5 * std::erfc(-x[lane] * 0.70710678118654752440);
  density = 0.39894228040143267794 * exponential(Vector<double>(-0.5 * x * x));
}

#if BIOATTN_BFLOAT16
// The forward pass needs no density: a polynomial, where |x| < 4.25, with an error of 1.5e-5, is twice as fast.
BIOATTN_INLINE Vector<float> gelu(const Vector<float>& x) {
  constexpr float kCoefficients[] = {-5.32785283e-9f, 2.25546472e-7f, -5.62651212e-6f, 9.34199852e-5f,
                                     -1.10857515e-3f, 9.81609151e-3f, -6.63452893e-2f, 3.98907125e-1f};
  const Vector<float> limit = Vector<float>{} + 4.25f;
  const Vector<float> low = x < -limit ? -limit : x, limited = low > limit ? limit : low;
  const Vector<float> square = limited * limited;
  Vector<float> p = Vector<float>{} + 5.56496585e-11f;
#pragma GCC unroll 8
  for (const float coefficient : kCoefficients) p = p * square + coefficient;
  const Vector<float> cumulative = 0.5f + limited * p;
  return x * (cumulative < 0 ? Vector<float>{} : cumulative);
}
#else
template <typename V>
BIOATTN_INLINE V gelu(const V& x) {
  V cumulative, density;
  normal_distribution(x, cumulative, density);
  return x * cumulative;
}
#endif

// Calls function(Data()) with the type of the elements in memory.
template <typename Function>
void for_dtype(const Tensor& tensor, const Function& function) {
#if BIOATTN_BFLOAT16
  function(c10::BFloat16());
#else
  dispatch<float, double, c10::BFloat16>(tensor.scalar_type(), function);
#endif
}

}  // namespace bioattn_mm::BIOATTN_ISA
