#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// The middle of the samples; for an even number the mean of the two middle ones; 0 without samples.
double median(std::vector<double> samples);

struct Interval {
  double low = 0, high = 0;
};
/// The confidence interval of the median, by the percentiles of the medians of `resamples` draws with
/// replacement (the bootstrap of Efron 1979). The same for the same samples and seed. With fewer than two
/// samples both ends are the median.
Interval bootstrap_median(const std::vector<double>& samples, double confidence = 0.95, int resamples = 2000,
                          uint64_t seed = 1);

}  // namespace lockstep
