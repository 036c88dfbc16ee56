// GELU and the functions of the normal distribution that it consists of, for vectors.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA {

// The type of the arithmetic: float32, or float64 for data in float64.
template <typename Data>
using Arithmetic = std::conditional_t<std::is_same_v<Data, double>, double, float>;

// The distribution function and the density of the normal distribution; in float32 with an error of 2e-7, by formula
// 7.1.26 of Abramowitz and Stegun. The last argument selects the precision.
BIOATTN_INLINE void normal_distribution(
    const Vector<float>& x, Vector<float>& cumulative, Vector<float>& density, const void*) {
  const Vector<float> half = 0.70710678f * (x < 0 ? -x : x);
  const Vector<float> exponent = exponential(-half * half);
  const Vector<float> t = 1 / (1 + 0.3275911f * half);
  const Vector<float> p =
      (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const Vector<float> tail = 0.5f * p * t * exponent;
  cumulative = x < 0 ? tail : 1 - tail;
  density = 0.39894228f * exponent;
}

BIOATTN_INLINE void normal_distribution(
    const Vector<double>& x, Vector<double>& cumulative, Vector<double>& density, const void*) {
  for (int64_t lane = 0; lane < kLanes<double>; ++lane)
    cumulative[lane] = 0.5 * std::erfc(-x[lane] * 0.70710678118654752440);
  density = 0.39894228040143267794 * exponential(Vector<double>(-0.5 * x * x));
}

template <typename Data, typename T = Arithmetic<Data>>
BIOATTN_INLINE Vector<T> gelu(const Vector<T>& x, const Data* data) {
  Vector<T> cumulative, density;
  normal_distribution(x, cumulative, density, data);
  return x * cumulative;
}

#if BIOATTN_BFLOAT16
// The same formula with an error of 5e-5.
BIOATTN_INLINE void normal_distribution(
    const Vector<float>& x, Vector<float>& cumulative, Vector<float>& density, const NativeBFloat16*) {
  const Vector<float> half = 0.70710678f * (x < 0 ? -x : x);
  const Vector<float> exponent = rough_exponential(-half * half);
  const Vector<float> t = rough_inverse(1 + 0.3275911f * half);
  const Vector<float> p =
      (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const Vector<float> tail = 0.5f * p * t * exponent;
  cumulative = x < 0 ? tail : 1 - tail;
  density = 0.39894228f * exponent;
}

// The forward pass needs no density. A polynomial for the distribution function where |x| < 4.25, with an error
// of 1.5e-5, takes half of the instructions.
BIOATTN_INLINE Vector<float> gelu(const Vector<float>& x, const NativeBFloat16*) {
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
#endif

}  // namespace bioattn_mm::BIOATTN_ISA
