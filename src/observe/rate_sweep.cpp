#include "observe/rate_sweep.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::observe {
namespace {

constexpr double kBelowTheLowest = 3;
constexpr size_t kLast = 5;          // losses that show a divergence
constexpr double kDiverged = 4;      // times the lowest
constexpr size_t kNeighbours = 40;   // 1 / this of the points to either side
constexpr double kLeastFall = 0.02;  // of the first loss

size_t neighbours_of(size_t count) { return std::max<size_t>(1, count / kNeighbours); }

}  // namespace

bool RateSweep::diverged() const {
  if (points_.empty()) return false;
  if (!std::isfinite(points_.back().loss)) return true;
  if (points_.size() <= kLast) return false;
  double sum = 0, lowest = 0, mean = 0;
  for (size_t i = 0; i < points_.size(); ++i) {
    sum += points_[i].loss - (i >= kLast ? points_[i - kLast].loss : 0);
    if (i + 1 < kLast) continue;
    mean = sum / kLast;
    if (i + 1 == kLast || mean < lowest) lowest = mean;
  }
  return mean > kDiverged * lowest;
}

std::vector<RatePoint> RateSweep::smoothed() const {
  const auto end = std::ranges::find_if(points_, [](const RatePoint& p) { return !std::isfinite(p.loss); });
  std::vector<RatePoint> points(points_.begin(), end);
  const std::vector<RatePoint> raw = points;
  for (size_t i = 0; i < raw.size(); ++i) {
    const size_t reach = std::min({neighbours_of(raw.size()), i, raw.size() - 1 - i});
    double sum = 0, weights = 0;
    for (size_t j = i - reach; j <= i + reach; ++j) {
      const double weight =
          1 + static_cast<double>(reach) - std::abs(static_cast<double>(j) - static_cast<double>(i));
      sum += weight * raw[j].loss;
      weights += weight;
    }
    points[i].loss = sum / weights;
  }
  return points;
}

std::optional<RateFinding> RateSweep::finding() const {
  const std::vector<RatePoint> points = smoothed();
  if (points.size() < 3) return {};
  const auto lowest = std::ranges::min_element(points, {}, &RatePoint::loss);
  const auto at = static_cast<size_t>(lowest - points.begin());
  RateFinding finding{.suggested = {},
                      .lowest_loss = lowest->loss,
                      .lowest_rate = lowest->rate,
                      .steepest = {},
                      .at_the_end = at + 1 + neighbours_of(points.size()) >= points_.size()};
  if (lowest->loss > points.front().loss * (1 - kLeastFall)) return finding;
  finding.suggested = lowest->rate / kBelowTheLowest;
  double steepest = 0;
  for (size_t i = 1; i < at; ++i) {
    const size_t reach = std::min({neighbours_of(points.size()), i, points.size() - 1 - i});
    const RatePoint &before = points[i - reach], &after = points[i + reach];
    const double slope = (after.loss - before.loss) / std::log(after.rate / before.rate);
    if (slope < steepest) {
      steepest = slope;
      finding.steepest = points[i].rate;
    }
  }
  return finding;
}

}  // namespace lockstep::observe
