#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"
#include "base/vector_math.h"

namespace lockstep::ops {

// Formulas of the elementwise ops, for both CPU loops and CUDA kernels. backward() gets the gradient of the
// output and, as kBackwardReads says, the value of the input or the output. All propagate NaN. Costly
// formulas are templates over the mathematics that they use.

enum class ForwardValue { input, output };

/// To the last bits of float32, the same on CPUs and GPUs.
struct PreciseMath {
  LOCKSTEP_HOST_DEVICE static float exp(float x) { return fast_exp(x); }
  LOCKSTEP_HOST_DEVICE static float divide(float a, float b) { return a / b; }
  LOCKSTEP_HOST_DEVICE static float tanh(float x) { return fast_tanh(x); }
};

struct ReluFormula {
  static constexpr ForwardValue kBackwardReads = ForwardValue::output;
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float forward(float x) {
    return x <= 0.0f ? 0.0f : x;
  }
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float backward(float gradient, float y) {
    return y <= 0.0f ? 0.0f : gradient;
  }
};

/// 0.5 x (1 + tanh(u)) is x sigmoid(2u), which loses nothing to cancellation if x is negative.
struct GeluFormula {
  static constexpr ForwardValue kBackwardReads = ForwardValue::input;
  static constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
  static constexpr float kCubic = 0.044715f;
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float forward(float x) {
    const float twice_u = kTwiceSqrtTwoOverPi * x * std::fma(kCubic * x, x, 1.0f);
    return Math::divide(x, 1.0f + Math::exp(-twice_u));
  }
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float backward(float gradient, float x) {
    // Beyond 9 the derivative is 0 or 1 to the last bit that counts, and within it nothing overflows to 0 *
    // inf.
    const float magnitude = std::fabs(x);
    const float bounded = std::copysign(magnitude > 9.0f ? 9.0f : magnitude, x);
    const float square = bounded * bounded;
    const float e = Math::exp(-kTwiceSqrtTwoOverPi * bounded * std::fma(kCubic, square, 1.0f));
    const float s = Math::divide(1.0f, 1.0f + e);  // and e s is 1 - s, without its cancellation
    const float slope = kTwiceSqrtTwoOverPi * std::fma(3.0f * kCubic, square, 1.0f);
    return gradient * std::fma(bounded * s * (e * s), slope, s);
  }
};

/// x Phi(x), Phi the normal distribution: relu(x) - |x| Phi(-|x|), in which nothing cancels. Phi(-z) is
/// exp(-z²/2) times a polynomial in 1 / (1 + c z), fitted to a relative error of 4e-8 for all z >= 0.
struct GeluErfFormula {
  static constexpr ForwardValue kBackwardReads = ForwardValue::input;
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float forward(float x) {
    const float z = bounded(std::fabs(x));
    return (x < 0.0f ? 0.0f : x) - z * tail<Math>(z, Math::exp(-0.5f * z * z));
  }
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float backward(float gradient, float x) {
    constexpr float kInverseSqrtTwoPi = 0.3989422804014327f;
    const float z = bounded(std::fabs(x)), e = Math::exp(-0.5f * z * z), phi = tail<Math>(z, e);
    const float density = kInverseSqrtTwoPi * e;
    return gradient * (x < 0.0f ? std::fma(-z, density, phi) : std::fma(z, density, 1.0f - phi));
  }

 private:
  /// Beyond it Phi(-z) is 0 in float32, and infinity times it would not be.
  LOCKSTEP_HOST_DEVICE static float bounded(float z) { return z > 15.0f ? 15.0f : z; }
  /// Phi(-z); `e` is exp(-z²/2).
  template <class Math>
  LOCKSTEP_HOST_DEVICE static float tail(float z, float e) {
    constexpr float kNearness = 0.31819805f;  // 0.45 / sqrt(2)
    const float t = Math::divide(1.0f, std::fma(kNearness, z, 1.0f));
    float p = -0.041391156f;
    p = std::fma(p, t, 0.19068808f);
    p = std::fma(p, t, -0.30058279f);
    p = std::fma(p, t, 0.14240121f);
    p = std::fma(p, t, -0.022358034f);
    p = std::fma(p, t, 0.11995045f);
    p = std::fma(p, t, 0.17525213f);
    p = std::fma(p, t, 0.22827164f);
    p = std::fma(p, t, 0.25388316f);
    p = std::fma(p, t, 0.25388532f);
    return 0.5f * e * (t * p);
  }
};

struct SiluFormula {
  static constexpr ForwardValue kBackwardReads = ForwardValue::input;
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float forward(float x) {
    return Math::divide(x, 1.0f + Math::exp(-x));
  }
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float backward(float gradient, float x) {
    // Beyond 80 the derivative is 0 or 1 to the last bit, and within it nothing overflows to 0 * inf.
    const float magnitude = std::fabs(x);
    const float bounded = std::copysign(magnitude > 80.0f ? 80.0f : magnitude, x);
    const float e = Math::exp(-bounded);
    const float s = Math::divide(1.0f, 1.0f + e);  // and e s is 1 - s, without its cancellation
    return gradient * std::fma(bounded * s, e * s, s);
  }
};

struct SigmoidFormula {
  static constexpr ForwardValue kBackwardReads = ForwardValue::output;
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float forward(float x) {
    return Math::divide(1.0f, 1.0f + Math::exp(-x));
  }
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float backward(float gradient, float y) {
    return gradient * y * (1.0f - y);
  }
};

struct TanhFormula {
  static constexpr ForwardValue kBackwardReads = ForwardValue::output;
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float forward(float x) {
    return Math::tanh(x);
  }
  template <class Math = PreciseMath>
  LOCKSTEP_HOST_DEVICE static float backward(float gradient, float y) {
    return gradient * std::fma(-y, y, 1.0f);
  }
};

/// Which elements an op's dropout keeps: a function of (seed, step, op, sample in the global batch, element),
/// so that backward and every layout draw the same mask and nothing is stored.
struct DropoutMask {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t purpose = 0;  ///< the op's number above the purpose's byte: two ops never share a counter
  float rate = 0;
  float scale = 1;  ///< 1 / (1 - rate), or 0 if nothing is kept

  LOCKSTEP_HOST_DEVICE static uint32_t purpose_of(uint32_t op_number) {
    return op_number << 8 | static_cast<uint32_t>(RandomPurpose::dropout);
  }
  LOCKSTEP_HOST_DEVICE static DropoutMask of(float rate, uint32_t op_number, uint64_t seed, uint64_t step) {
    return {seed, static_cast<uint32_t>(step), purpose_of(op_number), rate, 1.0f / (1.0f - rate)};
  }
  /// Factors of the elements 4 group ... 4 group + 3 of `sample`: 0 or scale.
  LOCKSTEP_HOST_DEVICE void factors(uint32_t group, uint32_t sample, float (&factor)[4]) const {
    const Philox::Block block = Philox::generate({{group, sample, step, purpose}}, seed);
    for (int i = 0; i < 4; ++i) factor[i] = Philox::uniform(block.word[i]) < rate ? 0.0f : scale;
  }
};

}  // namespace lockstep::ops
