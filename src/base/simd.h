#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace lockstep {

// Sixteen floats side by side, for CPU loops whose sums need an order that no compiler, instruction set or
// thread count may choose: sixteen partial sums, then a fixed fold. g++ maps them onto the registers that the
// target has. Sources that include this are compiled with -Wno-psabi: everything here is inlined, so no ABI
// is at stake.

inline constexpr int64_t kLanes = 16;
using Lanes [[gnu::vector_size(64)]] = float;

[[gnu::always_inline]] inline Lanes splat(float value) { return value - Lanes{}; }

[[gnu::always_inline]] inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
[[gnu::always_inline]] inline void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof(lanes)); }

/// The first `count` < kLanes floats, the other lanes `fill`. Reads no memory beyond them.
[[gnu::always_inline]] inline Lanes load_first(const float* from, int64_t count, float fill) {
  float lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane < count ? from[lane] : fill;
  return load(lanes);
}
[[gnu::always_inline]] inline void store_first(float* to, int64_t count, Lanes lanes) {
  std::memcpy(to, &lanes, static_cast<size_t>(count) * sizeof(float));
}

/// The first `count` lanes of `lanes`, the others `fill`.
[[gnu::always_inline]] inline Lanes keep_first(Lanes lanes, int64_t count, float fill) {
  Lanes result;
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = lane < count ? lanes[lane] : fill;
  return result;
}

/// f of each lane; g++ makes vector instructions of an inlined f without branches.
template <class F>
[[gnu::always_inline]] inline Lanes map(Lanes lanes, const F& f) {
  Lanes result;
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = f(lanes[lane]);
  return result;
}

/// a * b + c, rounded once.
[[gnu::always_inline]] inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  Lanes result;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = std::fma(a[lane], b[lane], c[lane]);
  return result;
}

/// Where a lane of `b` is NaN the result is; a NaN in `a` is lost.
[[gnu::always_inline]] inline Lanes maximum(Lanes a, Lanes b) { return a > b ? a : b; }

/// combine(lane, lane + 8), then + 4, + 2, + 1, until one number is left.
template <class Combine>
[[gnu::always_inline]] inline float fold(Lanes v, const Combine& combine) {
  v = combine(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = combine(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = combine(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = combine(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return v[0];
}
[[gnu::always_inline]] inline float fold_sum(Lanes lanes) {
  return fold(lanes, [](Lanes a, Lanes b) { return a + b; });
}
[[gnu::always_inline]] inline float fold_maximum(Lanes lanes) {
  return fold(lanes, [](Lanes a, Lanes b) { return maximum(a, b); });
}

}  // namespace lockstep
