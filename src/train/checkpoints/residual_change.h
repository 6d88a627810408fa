#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "train/worker/worker.h"

namespace lockstep::train {

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
/// What is told of a change: "the checkpoint has no residuals ...". "": nothing.
std::string describe(const ResidualChange& change);
/// Reads and adds up the sources of the residuals that this rank has. REQUIRES: they are not the same.
void load_changed(Worker& worker, const checkpoint::Checkpoint& checkpoint, const ResidualChange& change,
                  const checkpoint::BeforeRead& before_read);

}  // namespace lockstep::train
