#pragma once

#include <optional>
#include <string>

#include "checkpoint/manifest.h"

namespace lockstep::train {

/// The run of "RUN/best", however that is written; nothing for another path.
std::optional<std::string> run_of_best(const std::string& path);

/// Of `run`, whose checkpoints are in `directory`: the one of the lowest evaluation loss that `newest` knows
/// of, or, where the run keeps the best and that one could not be saved, the best before it. Throws
/// CheckpointError where there is none.
std::string best_checkpoint(const std::string& directory, const std::string& newest, const std::string& run);

/// The manifest of a checkpoint, of a run's newest that can be read, or of the best of "RUN/best", before
/// anything else of it is; nothing where there is none: whoever restores it says what is wrong.
std::optional<checkpoint::Manifest> manifest_of(const std::string& checkpoint_or_run);

/// Throws ConfigError where the checkpoint's model is not that of a config with these fields (its
/// math_fields).
void require_same_model(const checkpoint::Manifest& manifest, const checkpoint::MathFields& fields);

}  // namespace lockstep::train
