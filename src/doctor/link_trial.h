#pragma once

#include <vector>

#include "comm/communicator.h"
#include "doctor/job_facts.h"

namespace lockstep::doctor {

/// Whom `member` of `count` meets in `round`, of so many that everybody meets everybody once and nobody two
/// at a time: count - 1, or count if that is odd, in which case each sits out once (-1).
int opponent(int member, int count, int round);
int rounds_of(int count);

/// COLLECTIVE: every pair of ranks sends small messages there and back. What this rank has measured, as the
/// lower rank of its pairs. `links`: a communicator of the job's ranks whose deadlines count. Throws
/// DeviceError naming a pair that does not exchange messages in time.
std::vector<Latency> try_pairs(comm::Communicator& links, const Ranks& ranks);

/// COLLECTIVE: one rank of each host sends to one of each other host, and on hosts with several ranks to the
/// second, in both directions; no host has two under way. What this rank has sent. Throws as try_pairs().
std::vector<LinkFacts> try_links(comm::Communicator& links, const Ranks& ranks);

}  // namespace lockstep::doctor
