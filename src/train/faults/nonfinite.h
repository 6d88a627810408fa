#pragma once

#include <string>
#include <vector>

#include "train/worker/worker.h"

namespace lockstep::train {

/// What one rank found, if anything: the earlier in the step, the nearer to the cause.
struct NonFiniteFinding {
  int micro_batch = -1;  ///< -1: before the first
  int place = 0;         ///< on the way forward through all segments and back
  int call = 0;          ///< kernel call within that
  std::string message;   ///< empty: nothing found
};

/// As text for other ranks, and back.
std::string to_text(const NonFiniteFinding& finding);
NonFiniteFinding finding_from_text(const std::string& text);
/// The message of the earliest finding: a micro-batch passes forward before it passes backward, so an
/// infinity that one rank's forward made counts before what another rank's backward made of it. Among equals
/// the lower rank's. Empty where there is none.
std::string earliest_message(const std::vector<NonFiniteFinding>& by_rank);

/// COLLECTIVE: replays the step described by `inputs`, with unchanged parameters, and looks at what every
/// kernel makes. Returns one line naming the first tensor that is not finite: op, tensor, micro-batch, rank,
/// or the parameter that was so before the step. `world` carries the ranks' findings.
std::string locate_nonfinite(Worker& worker, comm::Communicator& world, const run::StepInputs& inputs);

/// The first gradient of a parameter, in the order in which backward makes them, that is not finite in this
/// rank's last step; or that it is the loss.
std::string first_nonfinite_gradient(const Worker& worker);

}  // namespace lockstep::train
