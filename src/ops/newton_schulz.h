#pragma once

#include <cmath>

#include "base/host_device.h"

namespace lockstep::ops {

// An iteration of Newton and Schulz with the coefficients of Keller Jordan's muon.py: X becomes a X + (b A +
// c A²) X with A = X Xᵀ. It maps each singular value s to a s + b s³ + c s⁵. The coefficients are for speed:
// after five iterations from a norm of 1, singular values above 0.002 lie between 0.68 and 1.21, not at 1.

inline constexpr float kNewtonSchulzA = 3.4445f, kNewtonSchulzB = -4.7750f, kNewtonSchulzC = 2.0315f;
/// Added to a matrix's norm, by which it is divided before.
inline constexpr double kLeastNorm = 1e-7;

/// An element of b A + c A².
LOCKSTEP_HOST_DEVICE inline float newton_schulz_factor(float a, float squared) {
  return std::fma(kNewtonSchulzC, squared, kNewtonSchulzB * a);
}
/// Of the next X; `product`: of (b A + c A²) X.
LOCKSTEP_HOST_DEVICE inline float newton_schulz_next(float x, float product) {
  return std::fma(kNewtonSchulzA, x, product);
}
/// By what X is multiplied first; `squares`: the sum of all elements' squares.
LOCKSTEP_HOST_DEVICE inline float inverse_norm(double squares) {
  return static_cast<float>(1 / (std::sqrt(squares) + kLeastNorm));
}

}  // namespace lockstep::ops
