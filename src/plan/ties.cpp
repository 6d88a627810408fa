#include "plan/ties.h"

#include <cmath>

namespace lockstep::plan {
namespace {

constexpr int kPoints = 31, kHalvings = 12;

/// Of the grid, equally spaced by logarithms.
double rate_of(int point) {
  if (point == 0) return kSlowestRate;
  if (point == kPoints - 1) return kFastestRate;
  return kSlowestRate * std::pow(kFastestRate / kSlowestRate, point / (kPoints - 1.0));
}

}  // namespace

std::vector<RateRange> tying_rates(const std::function<double(double rate)>& ratio, double limit) {
  std::vector<RateRange> ranges;
  bool ties = false;
  for (int point = 0; point < kPoints; ++point) {
    const double rate = rate_of(point);
    const bool ties_here = ratio(rate) <= limit;
    if (ties_here == ties) continue;
    double low = point == 0 ? rate : rate_of(point - 1), high = rate;
    for (int i = 0; i < kHalvings && low < high; ++i) {
      const double middle = std::sqrt(low * high);
      ((ratio(middle) <= limit) == ties ? low : high) = middle;
    }
    // Of the last rates looked at on both sides, that which ties.
    if (ties_here)
      ranges.push_back({.from = high, .to = kFastestRate});
    else
      ranges.back().to = low;
    ties = ties_here;
  }
  return ranges;
}

TyingServers tying_servers(const std::function<std::optional<double>(int servers)>& ratio, double limit,
                           int fewest, int most) {
  TyingServers found;
  for (int servers = fewest; servers <= most; ++servers) {
    const std::optional<double> here = ratio(servers);
    if (!here) break;
    found.tried = servers;
    if (*here > limit) continue;
    if (!found.counts.empty() && found.counts.back().to == servers - 1)
      found.counts.back().to = servers;
    else
      found.counts.push_back({.from = servers, .to = servers});
  }
  return found;
}

}  // namespace lockstep::plan
