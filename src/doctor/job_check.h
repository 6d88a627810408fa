#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "train/start/world.h"

namespace lockstep::doctor {

struct JobRequest {
  std::string output_directory;        ///< all ranks must share it; empty: not checked
  std::vector<Finding> host_findings;  ///< of this host, on one rank of each host; empty on the others
};

/// COLLECTIVE: checks the whole job: its ranks, what they must have in common, and the links between them.
/// `tell` gets each finding on rank 0, as soon as it is known. Returns all findings on rank 0, none on
/// others. Throws CollectiveError if ranks have different requests, DeviceError if two ranks cannot reach
/// each other.
std::vector<Finding> look_at_job(train::World& world, const JobRequest& request,
                                 const std::function<void(const Finding&)>& tell);

}  // namespace lockstep::doctor
