#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"

namespace lockstep::train {

/// The path of the config that a run has kept beside its checkpoints. `checkpoint`: the run, or one of its
/// checkpoints; `advice`: the end of the error. Throws ConfigError if there is none.
std::string kept_config_of(const std::string& checkpoint, const std::string& advice);

/// A run's model and how it was trained, without what trained it.
struct OpenedRun {
  config::RunConfig config;  ///< with the checkpoint's encodings; nothing trains
  checkpoint::Checkpoint checkpoint;
};

/// Opens a checkpoint as its user named it (find_checkpoint). `config`: the path of its config; empty: the
/// one that the run has kept. Throws ConfigError if the config is of another model, CheckpointError if the
/// checkpoint is damaged.
OpenedRun open_run(const std::string& checkpoint, const std::string& config,
                   std::vector<std::string> overrides, const std::string& advice);

}  // namespace lockstep::train
