#pragma once

#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// Exchanges of a lane that an executor has under way at once, at most. Servers' parts of a bucket may differ
/// by a chunk of 256 KiB, and with few under way all wait for the one that has most: at 100 Mbit/s, with
/// three workers and three servers, a step of 19 MB took 2,074 ms with 4 and 1,812 with 8. With more, a
/// worker gets far ahead of others whom its servers wait for: two workers took 1,773 ms to two servers with
/// 16, 1,693 with 8.
inline constexpr int kMostExchangesUnderWay = 8;

/// By instruction: so many of those right before it in its lane may be under way when an executor starts it,
/// fewer than kMostExchangesUnderWay. All of them are exchanges then, and neither writes what another one
/// touches: what comes behind them in the lane, or depends on them, cannot tell, since each is complete in
/// its turn. The first of a lane waits for its end in the iteration before. REQUIRES: buffers are placed.
std::vector<int> independent_predecessors(const Program& program);

}  // namespace lockstep::program
