#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "control/connection.h"
#include "control/control_protocol.h"
#include "control/endpoint.h"
#include "control/timings.h"

namespace lockstep::control {

/// Rank 0: lets the others in until all are there or `deadline` has passed, then closes the door. By rank;
/// closed connections belong to ranks that did not come.
std::vector<Connection> await_ranks(std::vector<Listener> listeners, const JobToken& token, int size,
                                    const ControlTimings& timings, Deadline deadline);

/// Any other rank: calls rank 0 at all its addresses at once, so that no number of silent ones delays the
/// good one, and again where one fails, until one of them answers as rank 0 does. A closed connection, and
/// what each address said in `failure`, where none has by `deadline`.
Connection call_root(const std::vector<Endpoint>& endpoints, const JobToken& token, int rank, int64_t pid,
                     const ControlTimings& timings, Deadline deadline, std::string& failure);

}  // namespace lockstep::control
