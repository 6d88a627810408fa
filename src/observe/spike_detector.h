#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::observe {

/// A loss or norm that stands out from the steps before it.
struct Spike {
  std::optional<double> loss_z,
      norm_z;           ///< deviations above the recent mean; only those beyond the threshold
  std::string message;  ///< one line, also if both stand out
};

/// Finds steps whose loss or gradient norm is far above recent values, by z-scores of their logarithms
/// against exponentially weighted means and variances (West, "Updating mean and variance estimates", 1979).
/// It uses logarithms because the noise of both is proportional to their size and skewed near zero: late in
/// training one hard sample makes a batch's loss a multiple of the mean, which is no event. Only rises are
/// reported, and each event once. The same on every rank, because it sees only agreed numbers. Not
/// thread-safe.
class SpikeDetector {
 public:
  static constexpr int kWarmUpSteps = 50;  ///< steps with finite values before the first report
  static constexpr int kPauseSteps = 50;   ///< steps without reports after a spike, to learn the new level

  /// `threshold`: in standard deviations; 0: no reports.
  explicit SpikeDetector(double threshold) : threshold_(threshold) {}

  /// `step`: for the message. Values that are not finite are ignored here; trainer.nonfinite handles them.
  std::optional<Spike> add(int64_t step, double loss, double norm);

 private:
  struct Series {
    double least_deviation;
    int64_t seen = 0;
    double mean = 0, variance = 0;

    /// How far `value` is above the mean; nothing while there are too few earlier values.
    std::optional<double> z_of(double value) const;
    void absorb(double value);
  };

  double threshold_;
  // The deviation on a plateau may be almost 0. With these floors and the default threshold of 8, a loss is
  // reported at 1.5 times its usual value, a norm at 2.2 times.
  Series loss_{.least_deviation = 0.05}, norm_{.least_deviation = 0.1};
  int64_t pause_ = 0;
};

}  // namespace lockstep::observe
