#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace lockstep::plan {

/// Rates of a link that are asked about, in bits per second.
inline constexpr double kSlowestRate = 1e6, kFastestRate = 1e12;

struct RateRange {
  double from = 0, to = 0;
  bool operator==(const RateRange&) const = default;
};

/// The ranges of rates in which `ratio`, of one layout's step to another's, is no more than `limit`,
/// ascending. It need not fall or rise all the way: it is looked at five times for each power of ten, and
/// where it crosses the limit between two of these, the rate is found by halving. Ends of all rates are
/// kSlowestRate and kFastestRate.
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

/// Likewise numbers of servers, from `fewest` to `most`. `ratio`: nothing if a model has no
/// parts for so many, nor for more.
TyingServers tying_servers(const std::function<std::optional<double>(int servers)>& ratio, double limit,
                           int fewest, int most);

}  // namespace lockstep::plan
