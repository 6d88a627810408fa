#pragma once

#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// Bytes that a host sends to other hosts, and receives from them, in a step of all workers, without headers.
struct LinkBytes {
  double sent = 0, received = 0;
};

/// The bytes by host; `hosts` has the host's number of each rank. Exchanges, rings, pushes and pulls count as
/// they are; other collectives as if each member passed its part of program::traffic_of() to the next one.
std::vector<LinkBytes> link_bytes(const compile::CompiledRun& run, const std::vector<int>& hosts);

/// The bytes in the busiest direction of any host.
double busiest_link_bytes(const compile::CompiledRun& run, const std::vector<int>& hosts);

}  // namespace lockstep::plan
