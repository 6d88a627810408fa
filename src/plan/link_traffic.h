#pragma once

#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// What leaves a host, and what reaches it, for other hosts in a step of all workers, headers not counted.
struct LinkBytes {
  double sent = 0, received = 0;
};

/// By host, where `hosts` has the number of each rank's. Exchanges, rings, pushes and pulls as they stand;
/// other collectives as if each member passed its part of program::traffic_of() to the next one.
std::vector<LinkBytes> link_bytes(const compile::CompiledRun& run, const std::vector<int>& hosts);

/// In the direction of a host in which most passes.
double busiest_link_bytes(const compile::CompiledRun& run, const std::vector<int>& hosts);

}  // namespace lockstep::plan
