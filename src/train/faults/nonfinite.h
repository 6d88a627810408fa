#pragma once

#include <string>
#include <vector>

#include "train/worker/worker.h"

namespace lockstep::train {

/// What one rank found, if anything. The earlier in the step, the nearer to the cause.
struct NonFiniteFinding {
  int micro_batch = -1;  ///< -1: before the first
  int place = 0;         ///< on the way forward through all segments and back
  int call = 0;          ///< kernel call within that
  std::string message;   ///< empty: nothing found
};

/// As text for other ranks, and back.
std::string to_text(const NonFiniteFinding& finding);
NonFiniteFinding finding_from_text(const std::string& text);
/// The message of the earliest finding; among equals, that of the lowest rank. A micro-batch passes forward
/// before backward, so an infinity of one rank's forward counts before what another rank's backward made of
/// it. Empty if there is no finding.
std::string earliest_message(const std::vector<NonFiniteFinding>& by_rank);

/// COLLECTIVE: replays the step of `inputs`, with unchanged parameters, and checks the output of every
/// kernel. Returns one line that names the first tensor that is not finite (op, tensor, micro-batch, rank),
/// or the parameter that was not finite before the step. `world` carries the ranks' findings.
std::string locate_nonfinite(Worker& worker, comm::Communicator& world, const run::StepInputs& inputs);

/// Names the first gradient of a parameter, in backward's order, that is not finite in this rank's last step;
/// or the loss.
std::string first_nonfinite_gradient(const Worker& worker);

}  // namespace lockstep::train
