#pragma once

#include <map>
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

/// `fields`: MathFields of the run. `records`: its optimizer state. Residuals (ResidualChange) are left out
/// of account.
StateChange state_change_of(const checkpoint::Checkpoint& checkpoint, const checkpoint::MathFields& fields,
                            std::span<const checkpoint::TensorRecord> records);

/// The residuals of error feedback of a checkpoint, and those of a run which resumes from it, if these are of
/// other leaves or uses. What counts is their sum, which is what all roundings have lost: of n leaves of the
/// run, leaf l takes those of leaves l, l + n, l + 2 n and so on. A use that the run does not round by itself
/// is added to its parameter's first.
struct ResidualChange {
  std::vector<checkpoint::TensorRecord> saved, wanted;  ///< ascending by parameter, leaf and use
  int saved_leaves = 0, wanted_leaves = 0;
  /// By name of a residual of the run, if they are not the same: those that are added up to it, in this
  /// order.
  std::map<std::string, std::vector<checkpoint::TensorRecord>> sources = {};
  bool is_same() const { return saved == wanted; }
};
ResidualChange residual_change_of(const checkpoint::Checkpoint& checkpoint,
                                  std::vector<checkpoint::TensorRecord> wanted);

}  // namespace lockstep::train
