#pragma once

#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// The most exchanges of a lane in flight. More messages fill the links' own queues, and answers wait behind
/// them. Measured at 200 Mbit/s, a step of 18 MB, with 8 and with 4 in flight: three workers and three
/// servers 905 and 885 ms, with one server 2,470 and 2,418 ms, two workers and two servers 852 and 838 ms.
inline constexpr int kMostExchangesUnderWay = 4;

/// For each instruction, the number of its direct predecessors in its lane that may be in flight when an
/// executor starts it, fewer than kMostExchangesUnderWay. All of these are exchanges, and none writes what
/// another accesses. Later instructions of the lane, and those that depend on them, notice nothing, because
/// exchanges complete in order. The first instruction of a lane waits for the lane's end in the iteration
/// before. REQUIRES: buffers are placed.
std::vector<int> independent_predecessors(const Program& program);

}  // namespace lockstep::program
