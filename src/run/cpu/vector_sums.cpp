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

namespace {

constexpr int64_t kThreads = 1024, kWarp = 32, kPack = 4;  // of a block

/// As warp_sum() has it in its first lane.
double fold(double* lanes, int64_t count) {
  for (int64_t width = count / 2; width > 0; width /= 2)
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

double block_sum(double* threads) {
  double warps[kThreads / kWarp];
  for (int64_t warp = 0; warp < kThreads / kWarp; ++warp) warps[warp] = fold(threads + warp * kWarp, kWarp);
  return fold(warps, kThreads / kWarp);
}

}  // namespace

double sum_of_squares_as_gpus(const float* data, int64_t count) {
  constexpr int64_t kLanes = kThreads * kPack;
  double lanes[kLanes] = {}, threads[kThreads];
  const int64_t packed = count / kPack * kPack;
  for (int64_t begin = 0; begin < packed; begin += kLanes) {
    const int64_t size = packed - begin < kLanes ? packed - begin : kLanes;
    for (int64_t lane = 0; lane < size; ++lane) {
      const double x = data[begin + lane];
      lanes[lane] += x * x;  // the square is exact, so that this is one rounding, as of an fma
    }
  }
  for (int64_t t = 0; t < kThreads; ++t) {
    const double* own = lanes + t * kPack;
    threads[t] = (own[0] + own[1]) + (own[2] + own[3]);
  }
  for (int64_t i = packed; i < count; ++i) {
    const double x = data[i];
    threads[i - packed] += x * x;
  }
  return block_sum(threads);
}

double sum_as_gpus(const double* sums, int64_t count) {
  double threads[kThreads] = {};
  for (int64_t begin = 0; begin < count; begin += kThreads)
    for (int64_t t = 0; t < kThreads && begin + t < count; ++t) threads[t] += sums[begin + t];
  return block_sum(threads);
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
