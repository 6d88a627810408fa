#pragma once

#include <optional>
#include <string>

namespace lockstep::train {

/// The run of "RUN/best", however that is written; nothing for another path.
std::optional<std::string> run_of_best(const std::string& path);

/// Of `run`, whose checkpoints are in `directory`: the one of the lowest evaluation loss that `newest` knows
/// of, or, where the run keeps the best and that one could not be saved, the best before it. Throws
/// CheckpointError where there is none.
std::string best_checkpoint(const std::string& directory, const std::string& newest, const std::string& run);

/// What the tokens of a checkpoint, or of a run's checkpoints, stand for; "" where they are of no text, or
/// nothing can be read: whoever restores them says what is wrong.
std::string characters_of(const std::string& checkpoint_or_run);

}  // namespace lockstep::train
