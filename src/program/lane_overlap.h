#pragma once

#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// Exchanges of a lane that an executor has under way at once, at most. What others send meanwhile waits in
/// their memory or in the transport's, so that this is not for free. Servers' parts of a bucket may differ by
/// a chunk of 256 KiB: with several slices of buckets under way none of them waits for the one that has most.
inline constexpr int kMostExchangesUnderWay = 8;

/// By instruction: so many of those right before it in its lane may be under way when an executor starts it,
/// fewer than kMostExchangesUnderWay. All of them are exchanges then, and neither writes what another one
/// touches: what comes behind them in the lane, or depends on them, cannot tell, since each is complete in
/// its turn. The first of a lane waits for its end in the iteration before. REQUIRES: buffers are placed.
std::vector<int> independent_predecessors(const Program& program);

}  // namespace lockstep::program
