#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/job.h"
#include "train/loop/trace.h"

namespace lockstep::cli {

/// A training, whole or in several parts, with the bits of all its steps.
struct TracedTraining {
  train::Trace trace;
  nlohmann::ordered_json report;  ///< of the last part
  /// Where ranks of one part hold different bits, or whoever compares it finds others.
  std::optional<train::TraceDifference> difference;
  std::string first_side, second_side;  ///< whose values the difference shows
};

/// Runs a part of `training` to its end, with what it writes in `directory`, and appends its trace. Ranks are
/// compared: replicas hold the same bits at every step, or the next loss is no longer what one process would
/// compute. `watch`: see ProcessJob. Throws Error if it fails.
void run_traced(const TrainingCommand& command, const std::vector<std::string>& options,
                const std::string& directory, TracedTraining& training,
                const std::function<void(pid_t)>& watch = {});
/// Compares `training`, unless it differs within itself already.
void compare_traces(const std::string& first_name, const TracedTraining& first, const std::string& name,
                    TracedTraining& training);

/// "differs: step 3, loss\n  dp=1  ...\n  dp=2  ...\n". REQUIRES: there is a difference.
std::string describe_difference(const TracedTraining& training);

}  // namespace lockstep::cli
