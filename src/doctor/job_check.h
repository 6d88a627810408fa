#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/verdict.h"
#include "train/start/world.h"

namespace lockstep::doctor {

struct JobRequest {
  std::string output_directory;        ///< which all ranks must share; empty: not looked at
  std::vector<Verdict> host_verdicts;  ///< of this host, on one rank of each host; empty on the others
};

/// COLLECTIVE: looks at the job as a whole: its ranks, what they must have in common, and the links between
/// them. `tell` gets each verdict on rank 0, as soon as it is known. Returns all of them there, and none
/// elsewhere. Throws CollectiveError if ranks were not asked for the same, DeviceError if two ranks do
/// not reach each other.
std::vector<Verdict> look_at_job(train::World& world, const JobRequest& request,
                                 const std::function<void(const Verdict&)>& tell);

}  // namespace lockstep::doctor
