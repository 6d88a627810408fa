#pragma once

#include <span>

namespace lockstep::run {

/// A time in which a lane was idle: it waited for others, or had nothing left to do.
struct Stand {
  double begin_ms, end_ms;
  bool for_communication;  ///< and for nothing else
};

/// The time in which none of `lanes` compute lanes worked while at least one of them waited for
/// communication. The step would be shorter by it if communication took no time. REQUIRES: a lane's stands do
/// not overlap.
double exposed_communication_ms(std::span<const Stand> stands, int lanes);

}  // namespace lockstep::run
