#include "run/cpu/vector_sums.h"

#include <bit>

#include "run/step_kernels.h"

namespace lockstep::run {

void add_into(float* __restrict destination, const float* __restrict source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] += source[i];
}

double sum_of_squares(const float* data, int64_t count) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = data[i + lane];
      lanes[lane] += x * x;
    }
  for (int lane = 0; i < count; ++i, ++lane) {
    const double x = data[i];
    lanes[lane] += x * x;
  }
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

uint64_t digest_of(const float* data, int64_t count) {
  constexpr int kLanes = 16;
  uint64_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] += digest_term(std::bit_cast<uint32_t>(data[i + lane]), static_cast<uint32_t>(i + lane));
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum += lane;
  for (; i < count; ++i) sum += digest_term(std::bit_cast<uint32_t>(data[i]), static_cast<uint32_t>(i));
  return sum;
}

}  // namespace lockstep::run
