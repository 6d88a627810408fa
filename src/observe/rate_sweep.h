#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::observe {

/// A step of a training whose learning rate rises by equal factors.
struct RatePoint {
  double rate = 0;
  double loss = 0;  ///< of the step's batch, before its update; may be not finite
  bool operator==(const RatePoint&) const = default;
};

/// What the losses say of rates.
struct RateFinding {
  /// A third of the rate with the lowest loss; nothing if the loss does not fall. Three is what trainings of
  /// the shipped configs bear out (docs/cli.md); fastai has ten.
  std::optional<double> suggested;
  double lowest_loss = 0;          ///< smoothed
  double lowest_rate = 0;          ///< there
  std::optional<double> steepest;  ///< where the smoothed loss falls most; nothing if it does not fall
  bool at_the_end = false;         ///< the loss is lowest at the last rate: it may fall further
};

/// A learning-rate range test: Smith, 2017, "Cyclical Learning Rates for Training Neural Networks", section
/// 3.3, with a rate that rises exponentially, as fastai's lr_find has it. Pure functions of the points.
class RateSweep {
 public:
  /// REQUIRES: rates ascend.
  void add(RatePoint point) { points_.push_back(point); }
  const std::vector<RatePoint>& points() const { return points_; }

  /// Whether there is nothing to see any more: the last loss is not finite, or the mean of the last five is
  /// more than four times the lowest such mean before.
  bool diverged() const;

  /// By point: the mean of its neighbours, 1/40 of all points to either side, weighted by a triangle; near an
  /// end as many as there are on both sides, so that it lags behind nowhere. Points from the first loss on
  /// that is not finite are left out.
  std::vector<RatePoint> smoothed() const;

  /// Of the smoothed losses. Nothing if there are fewer than three. Steepest: by the logarithm of the rate,
  /// over as many neighbours, among rates up to the one with the lowest loss. The loss falls if the lowest is
  /// at least 2 % below the first.
  std::optional<RateFinding> finding() const;

 private:
  std::vector<RatePoint> points_;
};

}  // namespace lockstep::observe
