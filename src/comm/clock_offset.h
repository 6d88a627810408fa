#pragma once

#include <chrono>
#include <string>

#include "comm/communicator.h"

namespace lockstep::comm {

/// How a rank's steady clock differs from rank 0's, in microseconds.
struct ClockOffset {
  double offset_us = 0;  ///< rank 0's clock minus this rank's
  double error_us = 0;   ///< the offset is right to so much; 0: it is the same clock
};

/// What steady clock this process reads: equal in two processes only if it is the same one. Empty if that is
/// not known.
std::string clock_identity();

/// COLLECTIVE: compares each rank's clock with rank 0's, one rank after the other, by messages there and back
/// (four stamps, as NTP does): of several rounds the shortest counts, and its error is half of the round
/// trip, whatever the two directions take. Ranks whose `identity` is rank 0's, and not empty, need no
/// messages. Throws CommError if a message takes longer than `timeout`. REQUIRES: host memory.
ClockOffset measure_clock_offset(Communicator& world, const std::string& identity,
                                 std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
