#include "ops/cpu/loops/multiply_adds.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

int64_t multiply_adds(int64_t iterations, float* numbers) {
  // More chains than an instruction takes cycles times what a processor starts in one, in as many registers.
  constexpr int kChains = 12;
  Register sums[kChains];
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = splat_register(numbers[chain]);
  const Register factor = splat_register(numbers[kChains]), term = splat_register(1.0f);
  for (int64_t i = 0; i < iterations; ++i)
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = fused(sums[chain], factor, term);
  for (int chain = 1; chain < kChains; ++chain) sums[0] += sums[chain];
  store_register(numbers, sums[0]);
  return iterations * kChains * kRegisterLanes;
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
