#include "ops/cpu/loops/products.h"

#include "ops/cpu/loops/tile_product.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

void product(int64_t rows, int64_t columns, int64_t inner, const float* left, const float* right,
             float* result) {
  for (int64_t row = 0; row < rows; row += kTileRows)
    tile_product(rows - row < kTileRows ? rows - row : kTileRows, columns, inner,
                 {left + row * inner, inner, 1}, right, columns, result + row * columns, columns, false);
}

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
