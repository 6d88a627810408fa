#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

namespace lockstep::observe {

/// A counter, looked at from time to time.
class Rate {
 public:
  /// How much it has grown per second since the last call. Nothing the first time, if no time has passed, or
  /// if it was unknown. One that was reset has not grown.
  std::optional<double> add(std::optional<double> counter, double now_seconds) {
    std::optional<double> rate;
    if (counter && last_ && now_seconds > seconds_)
      rate = std::max(0.0, *counter - *last_) / (now_seconds - seconds_);
    last_ = counter;
    seconds_ = now_seconds;
    return rate;
  }

 private:
  std::optional<double> last_;
  double seconds_ = 0;
};

/// Four digits behind the point are enough for a share, and lines stay short.
inline double short_share(double share) { return std::round(share * 1e4) / 1e4; }

}  // namespace lockstep::observe
