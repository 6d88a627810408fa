#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace lockstep::train {

/// How the optimizer state of a checkpoint differs from that of a run which resumes from it.
struct StateChange {
  bool is_explained = false;      ///< by other frozen layers, or by optimizer.ema; false: nothing may differ
  std::set<std::string> missing;  ///< tensors of the run that the checkpoint lacks
  std::vector<checkpoint::TensorRecord> left_over;  ///< tensors of the checkpoint that the run lacks
  bool begins_averages = false;                     ///< averages are among them
  std::set<std::string> learning_anew = {};         ///< parameters that were frozen
};

/// `fields`: MathFields of the run. `records`: its optimizer state, without residuals, which are compared
/// apart (residual_change.h).
StateChange state_change_of(const checkpoint::Checkpoint& checkpoint, const checkpoint::MathFields& fields,
                            std::span<const checkpoint::TensorRecord> records);

}  // namespace lockstep::train
