#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace lockstep::plan {

/// The range of link rates to search, in bits per second.
inline constexpr double kSlowestRate = 1e6, kFastestRate = 1e12;

struct RateRange {
  double from = 0, to = 0;
  bool operator==(const RateRange&) const = default;
};

/// The ranges of rates, ascending, in which `ratio` (of one layout's step to another's) is at most `limit`.
/// The ratio need not be monotonic: it is sampled five times per power of ten; if it crosses the limit
/// between two samples, bisection finds the rate. Rates go from kSlowestRate to kFastestRate.
std::vector<RateRange> tying_rates(const std::function<double(double rate)>& ratio, double limit);

struct CountRange {
  int from = 0, to = 0;
  bool operator==(const CountRange&) const = default;
};
struct TyingServers {
  std::vector<CountRange> counts;
  int tried = 0;  ///< up to so many; 0: none
  bool operator==(const TyingServers&) const = default;
};

/// The same for numbers of servers, from `fewest` to `most`. `ratio`: nothing if a model has no parts for so
/// many servers, or more.
TyingServers tying_servers(const std::function<std::optional<double>(int servers)>& ratio, double limit,
                           int fewest, int most);

}  // namespace lockstep::plan
