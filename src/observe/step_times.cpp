#include "observe/step_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::observe {
namespace {

// From a hundred nanoseconds to beyond a month; what lies outside counts in the last bucket of its side.
constexpr double kSmallest = 1e-4;
constexpr double kGrowth = 1.01;
constexpr int kBuckets = 3100;

int bucket_of(double milliseconds) {
  if (milliseconds <= kSmallest) return 0;
  const double index = std::log(milliseconds / kSmallest) / std::log(kGrowth);
  return static_cast<int>(std::min<double>(index, kBuckets - 1));
}

/// The middle, in proportion, of a bucket.
double middle_of(int bucket) { return kSmallest * std::pow(kGrowth, bucket + 0.5); }

}  // namespace

void StepTimes::add(double milliseconds) {
  ensure(std::isfinite(milliseconds) && milliseconds >= 0, "the duration of a step is not a time");
  if (steps_ < kWarmUpSteps) {
    nth(first_, steps_++) = milliseconds;
    return;
  }
  if (buckets_.empty()) {
    buckets_.resize(kBuckets);
    later_min_ = later_max_ = milliseconds;
  }
  ++steps_;
  ++nth(buckets_, bucket_of(milliseconds));
  later_total_ += milliseconds;
  later_min_ = std::min(later_min_, milliseconds);
  later_max_ = std::max(later_max_, milliseconds);
}

double StepTimes::total() const {
  return steps_ > kWarmUpSteps ? later_total_ : std::accumulate(first_.begin(), first_.begin() + steps_, 0.0);
}

double StepTimes::percentile(double share) const {
  const auto rank =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(share * static_cast<double>(measured()))));
  if (buckets_.empty()) {
    std::vector<double> sorted(first_.begin(), first_.begin() + steps_);
    std::sort(sorted.begin(), sorted.end());
    return nth(sorted, rank - 1);
  }
  int bucket = 0;
  for (int64_t seen = buckets_[0]; seen < rank; seen += nth(buckets_, bucket)) ++bucket;
  return std::clamp(middle_of(bucket), later_min_, later_max_);
}

std::optional<StepMilliseconds> StepTimes::summary() const {
  if (steps_ == 0) return std::nullopt;
  return StepMilliseconds{total() / static_cast<double>(measured()), percentile(0.50), percentile(0.99)};
}

std::optional<double> StepTimes::per_second(double samples_per_step) const {
  if (total() <= 0) return std::nullopt;
  return samples_per_step * static_cast<double>(measured()) / (total() / 1000);
}

}  // namespace lockstep::observe
