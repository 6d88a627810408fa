#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "control/connection.h"
#include "control/control_protocol.h"
#include "control/endpoint.h"
#include "control/timings.h"

namespace lockstep::control {

/// Rank 0: admits other ranks until all are connected or `deadline` has passed, then stops listening. Returns
/// connections by rank; those of ranks that did not come are closed.
std::vector<Connection> await_ranks(std::vector<Listener> listeners, const JobToken& token, int size,
                                    const ControlTimings& timings, Deadline deadline);

/// Any other rank: connects to all addresses of rank 0 at the same time, so that silent addresses do not
/// delay the good one. Retries failed ones until one answers as rank 0 does. If none has by `deadline`: a
/// closed connection, and the result of each address in `failure`.
Connection call_root(const std::vector<Endpoint>& endpoints, const JobToken& token, int rank, int64_t pid,
                     const ControlTimings& timings, Deadline deadline, std::string& failure);

}  // namespace lockstep::control
