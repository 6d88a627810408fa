#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace lockstep {

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  if (samples.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(samples.begin(), middle)) / 2;
}

Interval bootstrap_median(const std::vector<double>& samples, double confidence, int resamples,
                          uint64_t seed) {
  if (samples.size() < 2) return {median(samples), median(samples)};
  std::mt19937_64 random(seed);
  std::vector<double> medians, drawn(samples.size());
  for (int i = 0; i < resamples; ++i) {
    // Not by a distribution of the library, whose draws are its own.
    for (double& value : drawn) value = samples[random() % samples.size()];
    medians.push_back(median(drawn));
  }
  std::ranges::sort(medians);
  const auto at = [&](double share) {
    return medians[static_cast<size_t>(std::lround(share * static_cast<double>(medians.size() - 1)))];
  };
  return {at((1 - confidence) / 2), at((1 + confidence) / 2)};
}

}  // namespace lockstep
