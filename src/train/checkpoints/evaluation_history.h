#pragma once

#include <cstdint>

namespace lockstep::train {

/// The best of a run's evaluations so far, and how long ago it was. The same on all ranks, because they agree
/// on each evaluation. Checkpoints contain it, so that a resumed run decides in the same way.
struct EvaluationHistory {
  int64_t best_step = -1;  ///< -1: there was none
  double best_loss = 0;
  int64_t since_best = 0;  ///< evaluations; without a best one, all of them
  int64_t last_step = -1;  ///< that was evaluated; -1: none, or other parameters since
  bool operator==(const EvaluationHistory&) const = default;

  /// True if the evaluation of `step` has a finite loss that is lower than all before it. Another evaluation
  /// of the last step, as after a resume, changes nothing.
  bool add(int64_t step, double loss);
};

}  // namespace lockstep::train
