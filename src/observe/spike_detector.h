#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::observe {

/// What stands out from the steps before it.
struct Spike {
  std::optional<double> loss_z,
      norm_z;           ///< deviations above the recent mean; only those beyond the threshold
  std::string message;  ///< one line, both where both stand out
};

/// Finds steps whose loss or gradient norm lies far above what was usual lately: z-scores of their logarithms
/// against exponentially weighted means and variances (West, "Updating mean and variance estimates", 1979).
/// Logarithms, because the noise of both is in proportion to their size and skewed near zero: late in
/// training one hard sample makes a batch's loss a multiple of the mean, which is no event. Only what rises
/// is told, and one event once. The same on every rank, since it sees agreed numbers alone. Not thread-safe.
class SpikeDetector {
 public:
  static constexpr int kWarmUpSteps = 50;  ///< of finite values, before which nothing is told
  static constexpr int kPauseSteps = 50;   ///< after a spike nothing is told, and the new level becomes usual

  /// `threshold`: standard deviations; 0: nothing is ever told.
  explicit SpikeDetector(double threshold) : threshold_(threshold) {}

  /// `step`: for the message. What is not finite is left to the policy for such steps: it neither counts nor
  /// spoils the means.
  std::optional<Spike> add(int64_t step, double loss, double norm);

 private:
  struct Series {
    double least_deviation;
    int64_t seen = 0;
    double mean = 0, variance = 0;

    /// How far `value` lies above the mean; nothing while there are too few before it.
    std::optional<double> z_of(double value) const;
    void absorb(double value);
  };

  double threshold_;
  // A plateau's deviation may be next to nothing. With these floors, and the default threshold of 8, a loss
  // must reach 1.5 times its usual value to be told, a norm 2.2 times.
  Series loss_{.least_deviation = 0.05}, norm_{.least_deviation = 0.1};
  int64_t pause_ = 0;
};

}  // namespace lockstep::observe
