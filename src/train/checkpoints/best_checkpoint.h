#pragma once

#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"

namespace lockstep::train {

/// The run in a path "RUN/best", however it is written; nothing for other paths.
std::optional<std::string> run_of_best(const std::string& path);

/// The checkpoint of `run`, in `directory`, with the lowest evaluation loss that `newest` records. If the run
/// keeps its best checkpoints and could not save this one, the best one before it. Throws CheckpointError if
/// there is none.
std::string best_checkpoint(const std::string& directory, const std::string& newest, const std::string& run);

/// The newest valid checkpoint in `directory`; invalid ones are logged. Nothing if there are none. Throws
/// CheckpointError if there are some, but none is valid.
std::optional<std::string> newest_checkpoint(const std::string& directory,
                                             const checkpoint::BeforeRead& before_read = {});

/// What a path given by a user means: a checkpoint, the newest of a run or of a folder of checkpoints, or the
/// best one of "RUN/best". Throws CheckpointError if there is none.
std::string find_checkpoint(const std::string& path, const checkpoint::BeforeRead& before_read = {});

/// The manifest of a checkpoint, of a run's newest readable checkpoint, or of the best one of "RUN/best".
/// Reads nothing else of it. Nothing if there is none: restoring it will say what is wrong.
std::optional<checkpoint::Manifest> manifest_of(const std::string& checkpoint_or_run);

/// Throws ConfigError if the checkpoint's model differs from that of a config with these math_fields.
void require_same_model(const checkpoint::Manifest& manifest, const checkpoint::MathFields& fields);

}  // namespace lockstep::train
