#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Sixteen floats side by side, for CPU loops whose sums need an order that no compiler, instruction set or
// thread count may choose: sixteen partial sums, then a fixed fold. They lie in one, two or four registers,
// each of which rounds every lane by itself, so that the instruction set changes no bit. A fused multiply-add
// is an intrinsic: compilers make sixteen scalar instructions of a loop over lanes on processors for which
// they prefer narrower vectors.
//
// What depends on the instruction set is in a namespace of its name, so that the linker never merges what was
// compiled for different ones.
#if defined(__AVX512F__)
#define LOCKSTEP_SIMD avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define LOCKSTEP_SIMD avx2
#else
#define LOCKSTEP_SIMD portable
#endif

namespace lockstep {

inline constexpr int64_t kLanes = 16;

inline namespace LOCKSTEP_SIMD {

#if defined(__AVX512F__)
inline constexpr int64_t kRegisterLanes = 16;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr int64_t kRegisterLanes = 8;
#else
inline constexpr int64_t kRegisterLanes = 4;
#endif
inline constexpr int kLaneRegisters = kLanes / kRegisterLanes;

using Register [[gnu::vector_size(kRegisterLanes * 4)]] = float;

[[gnu::always_inline]] inline Register splat_register(float value) { return value - Register{}; }

[[gnu::always_inline]] inline Register load_register(const float* from) {
  Register result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
[[gnu::always_inline]] inline void store_register(float* to, Register value) {
  std::memcpy(to, &value, sizeof(value));
}

/// a * b + c, rounded once.
[[gnu::always_inline]] inline Register fused(Register a, Register b, Register c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  Register result;
  for (int lane = 0; lane < kRegisterLanes; ++lane) result[lane] = std::fma(a[lane], b[lane], c[lane]);
  return result;
#endif
}

/// Numbers of base/vector_math.h, a register at a time.
struct RegisterNumbers {
  using Number = Register;
  using Integer [[gnu::vector_size(sizeof(Register))]] = int32_t;
  using Unsigned [[gnu::vector_size(sizeof(Register))]] = uint32_t;

  [[gnu::always_inline]] static Register number(float value) { return splat_register(value); }
  [[gnu::always_inline]] static Register fma(Register a, Register b, Register c) { return fused(a, b, c); }
  [[gnu::always_inline]] static Register within(Register x, float low, float high) {
    const Register below_high = x > high ? number(high) : x;
    return x < low ? number(low) : below_high;
  }
  [[gnu::always_inline]] static Unsigned bits(Register x) { return reinterpret_cast<Unsigned>(x); }
  [[gnu::always_inline]] static Register of_bits(Unsigned x) { return reinterpret_cast<Register>(x); }
  [[gnu::always_inline]] static Integer to_signed(Unsigned x) { return reinterpret_cast<Integer>(x); }
  [[gnu::always_inline]] static Unsigned to_unsigned(Integer x) { return reinterpret_cast<Unsigned>(x); }
};

struct Lanes {
  Register part[kLaneRegisters];
};

using LaneRegisters = std::make_integer_sequence<int, kLaneRegisters>;

/// make(i) for each register. (Written one by one: g++ 12 keeps in memory what a loop does with several
/// registers, which took seven times as long.)
template <class Make, int... i>
[[gnu::always_inline]] inline Lanes make_lanes(const Make& make, std::integer_sequence<int, i...>) {
  return {{make(i)...}};
}

/// f(registers...) for each register of the arguments.
template <class F, class... Arguments>
[[gnu::always_inline]] inline Lanes by_register(const F& f, const Arguments&... arguments) {
  return make_lanes(
      [&]([[maybe_unused]] int i) __attribute__((always_inline)) { return f(arguments.part[i]...); },
      LaneRegisters());
}

[[gnu::always_inline]] inline Lanes splat(float value) {
  return by_register([value] { return splat_register(value); });
}

[[gnu::always_inline]] inline Lanes load(const float* from) {
  return make_lanes(
      [from](int i) __attribute__((always_inline)) { return load_register(from + i * kRegisterLanes); },
      LaneRegisters());
}
template <int... i>
[[gnu::always_inline]] inline void store_registers(float* to, const Lanes& lanes,
                                                   std::integer_sequence<int, i...>) {
  (store_register(to + i * kRegisterLanes, lanes.part[i]), ...);
}
[[gnu::always_inline]] inline void store(float* to, const Lanes& lanes) {
  store_registers(to, lanes, LaneRegisters());
}

/// The first `count` < kLanes floats, the other lanes `fill`. Reads no memory beyond them.
[[gnu::always_inline]] inline Lanes load_first(const float* from, int64_t count, float fill) {
  float lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane < count ? from[lane] : fill;
  return load(lanes);
}
[[gnu::always_inline]] inline void store_first(float* to, int64_t count, const Lanes& lanes) {
  std::memcpy(to, &lanes, static_cast<size_t>(count) * sizeof(float));
}

/// The first `count` lanes of `lanes`, the others `fill`.
[[gnu::always_inline]] inline Lanes keep_first(const Lanes& lanes, int64_t count, float fill) {
  float values[kLanes];
  store(values, lanes);
  return load_first(values, count, fill);
}

[[gnu::always_inline]] inline Lanes operator+(const Lanes& a, const Lanes& b) {
  return by_register([](Register x, Register y) { return x + y; }, a, b);
}
[[gnu::always_inline]] inline Lanes operator-(const Lanes& a, const Lanes& b) {
  return by_register([](Register x, Register y) { return x - y; }, a, b);
}
[[gnu::always_inline]] inline Lanes operator*(const Lanes& a, const Lanes& b) {
  return by_register([](Register x, Register y) { return x * y; }, a, b);
}
[[gnu::always_inline]] inline Lanes& operator+=(Lanes& a, const Lanes& b) { return a = a + b; }

/// a * b + c, rounded once.
[[gnu::always_inline]] inline Lanes fused(const Lanes& a, const Lanes& b, const Lanes& c) {
  return by_register([](Register x, Register y, Register z) { return fused(x, y, z); }, a, b, c);
}

/// If a lane of `b` is NaN, the result is; a NaN in `a` is lost.
[[gnu::always_inline]] inline Lanes maximum(const Lanes& a, const Lanes& b) {
  return by_register([](Register x, Register y) { return x > y ? x : y; }, a, b);
}

/// combine(lane, lane + 8), then + 4, + 2, + 1, until one number is left.
template <class Combine>
[[gnu::always_inline]] inline float fold(const Lanes& lanes, const Combine& combine) {
  float values[kLanes];
  store(values, lanes);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width > 0; width /= 2)
#pragma GCC unroll 8
    for (int lane = 0; lane < width; ++lane) values[lane] = combine(values[lane], values[lane + width]);
  return values[0];
}
[[gnu::always_inline]] inline float fold_sum(const Lanes& lanes) {
  return fold(lanes, [](float a, float b) { return a + b; });
}
[[gnu::always_inline]] inline float fold_maximum(const Lanes& lanes) {
  return fold(lanes, [](float a, float b) { return a > b ? a : b; });
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep
