#pragma once

#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// How many exchanges of a lane are under way at most. Queues of messages fill the links' own queues, which
/// answers then wait behind: at 200 Mbit/s a step of 18 MB took three workers and three servers 905 ms with
/// 8 and 885 with 4, with one server 2,470 and 2,418, two workers and two servers 852 and 838.
inline constexpr int kMostExchangesUnderWay = 4;

/// By instruction: so many of those right before it in its lane may be under way when an executor starts it,
/// fewer than kMostExchangesUnderWay. All of them are exchanges then, and neither writes what another one
/// touches: what comes behind them in the lane, or depends on them, cannot tell, since each is complete in
/// its turn. The first of a lane waits for its end in the iteration before. REQUIRES: buffers are placed.
std::vector<int> independent_predecessors(const Program& program);

}  // namespace lockstep::program
