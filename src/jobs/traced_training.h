#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "train/loop/trace.h"

namespace lockstep::jobs {

/// A training, whole or in several parts, with the bits of all its steps.
struct TracedTraining {
  train::Trace trace;
  nlohmann::ordered_json report;  ///< of the last part
  /// The difference between ranks of one part, or to another training that it was compared with.
  std::optional<train::TraceDifference> difference;
  std::string first_side, second_side;  ///< whose values the difference shows
};

/// Runs a part of `training` to its end, with its output in `directory`, and appends its trace. Compares
/// ranks: if replicas do not have the same bits at every step, the next loss is no longer that of one
/// process. `watch`: see ProcessJob. Throws Error if it fails.
void run_traced(const TrainingCommand& command, const std::vector<std::string>& options,
                const std::string& directory, TracedTraining& training,
                const std::function<void(pid_t)>& watch = {});
/// Compares `training` with the first one, unless its own ranks already differ.
void compare_traces(const std::string& first_name, const TracedTraining& first, const std::string& name,
                    TracedTraining& training);

/// "differs: step 3, loss\n  dp=1  ...\n  dp=2  ...\n". REQUIRES: there is a difference.
std::string describe_difference(const TracedTraining& training);

}  // namespace lockstep::jobs
