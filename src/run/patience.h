#pragma once

#include <chrono>

#include "base/clock.h"

namespace lockstep::run {

/// The longest that a rank sleeps which waits for most of a step, such as a server, and may share its cores
/// with ranks that compute. A look at what has come takes about 50 us: 1 % of this.
inline constexpr std::chrono::microseconds kLongestNap{5000};

/// Between two looks at what is waited for, of one thread: gives up the core and comes back at once, or,
/// where it has waited for a while, sleeps for a twentieth of that, at most `longest_nap`.
void rest(Clock::duration waited, std::chrono::microseconds longest_nap);

}  // namespace lockstep::run
