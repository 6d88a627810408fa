#pragma once

#include <vector>

#include "comm/communicator.h"
#include "doctor/job_facts.h"

namespace lockstep::doctor {

/// The partner of `member` (of `count`) in `round`. In count - 1 rounds, or count if that is odd, every two
/// members meet once, and no member has two partners at the same time. If count is odd, each member sits out
/// once (-1).
int opponent(int member, int count, int round);
int rounds_of(int count);

/// COLLECTIVE: every pair of ranks sends small messages there and back. Returns the latencies that this rank
/// has measured, as the lower rank of its pairs. `links`: a communicator of the job's ranks, whose deadlines
/// apply. Throws DeviceError, which names a pair that does not exchange messages in time.
std::vector<Latency> try_pairs(comm::Communicator& links, const Ranks& ranks);

/// COLLECTIVE: one rank of each host sends to one rank of each other host and, on hosts with several ranks,
/// to the second rank, in both directions. No host has two transfers at the same time. Returns the links by
/// which this rank has sent. Throws as try_pairs().
std::vector<LinkFacts> try_links(comm::Communicator& links, const Ranks& ranks);

}  // namespace lockstep::doctor
