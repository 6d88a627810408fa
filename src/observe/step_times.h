#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::observe {

struct StepMilliseconds {
  double mean = 0, p50 = 0, p99 = 0;
};

/// Times of steps, in constant memory. The first five steps (allocation, caches, start of readers) count only
/// if there are no more. Times exclude start-up, evaluation and checkpoints: the caller adds only steps.
/// Percentiles are of nearest rank: exact up to five steps, then within half a percent, from a histogram
/// whose buckets grow by one percent. Not thread-safe.
class StepTimes {
 public:
  static constexpr int kWarmUpSteps = 5;

  /// REQUIRES: milliseconds is finite and not negative.
  void add(double milliseconds);
  int64_t steps() const { return steps_; }  ///< number of added steps
  int64_t measured() const { return steps_ > kWarmUpSteps ? steps_ - kWarmUpSteps : steps_; }

  /// Nothing if no step was added.
  std::optional<StepMilliseconds> summary() const;
  /// The rate for steps of `samples_per_step` samples each (global_batch, or its tokens). Nothing if no time
  /// has passed.
  std::optional<double> per_second(double samples_per_step) const;

 private:
  double total() const;
  double percentile(double share) const;

  int64_t steps_ = 0;
  std::array<double, kWarmUpSteps> first_{};
  double later_total_ = 0, later_min_ = 0, later_max_ = 0;
  std::vector<int64_t> buckets_;  ///< of the steps after the first; empty before there are any
};

}  // namespace lockstep::observe
