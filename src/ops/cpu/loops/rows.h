#pragma once

#include <algorithm>
#include <cstdint>

#include "base/simd.h"
#include "base/vector_math.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

// Exponentials, and reductions over one row in the fixed order of base/simd.h.

/// Sum of term(lanes of row at i) over the row; `term` gets sixteen elements starting at i, of which those
/// beyond the row's end are loaded as `fill`, for which term must give 0.
template <class Term>
[[gnu::always_inline]] inline float row_sum(int64_t count, const Term& term) {
  Lanes sum = splat(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    sum += term([i](const float* row, float) { return load(row + i); });
  if (i < count)
    sum += term([=](const float* row, float fill) { return load_first(row + i, count - i, fill); });
  return fold_sum(sum);
}

/// May miss a NaN, but is never larger than the largest element. REQUIRES: count > 0.
inline float row_maximum(const float* row, int64_t count) {
  Lanes largest = splat(row[0]);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) largest = maximum(load(row + i), largest);
  if (i < count) largest = maximum(load_first(row + i, count - i, row[0]), largest);
  return fold_maximum(largest);
}

[[gnu::always_inline]] inline Lanes exponential(const Lanes& x) {
  return by_register([](Register part) { return fast_exp_of<RegisterNumbers>(part); }, x);
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
