#pragma once

#include <cmath>
#include <type_traits>

#include "device/cuda/kernel.h"
#include "ops/elementwise.h"

namespace lockstep::ops {

/// For results that two bytes hold. With PreciseMath, arithmetic rather than memory would bound the kernels
/// on them.
struct ApproximateMath {
  static constexpr float kLog2E = 1.4426950408889634f;
  __device__ static float exp(float x) { return device::fast_exp2(x * kLog2E); }
  __device__ static float divide(float a, float b) { return device::fast_divide(a, b); }
  __device__ static float tanh(float x) {
    const float magnitude = std::fabs(x);
    // Near 0 the subtraction would cancel; there the series' next term is below 1e-7.
    const float near = x * std::fma(x * x, -1.0f / 3, 1.0f);
    const float far = std::copysign(1.0f - device::fast_divide(2.0f, 1.0f + exp(2 * magnitude)), x);
    return magnitude < 0.03f ? near : far;
  }
};
template <class T>
using MathFor = std::conditional_t<sizeof(T) == 2, ApproximateMath, PreciseMath>;

/// Formulas of ops/elementwise.h as kernels take them.
template <class Formula, class Math>
struct Forward {
  __device__ float operator()(float x) const { return Formula::template forward<Math>(x); }
};
template <class Formula, class Math>
struct Backward {
  __device__ float operator()(float gradient, float value) const {
    return Formula::template backward<Math>(gradient, value);
  }
};

}  // namespace lockstep::ops
