#pragma once

#include <optional>
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
  checkpoint::Weights weights = checkpoint::Weights::parameters;  ///< that are to be used
};

/// Whether moving averages are to be used for parameters. `wished`: by the user; if nothing, averages are
/// used if evaluations of the training use them.
bool uses_average(const config::RunConfig& config, std::optional<bool> wished);

/// Opens a checkpoint as its user named it (find_checkpoint). `config`: the path of its config; empty: the
/// one that the run has kept. `average`: see uses_average(). Throws ConfigError if the config is of another
/// model, CheckpointError if the checkpoint is damaged.
OpenedRun open_run(const std::string& checkpoint, const std::string& config,
                   std::vector<std::string> overrides, std::optional<bool> average,
                   const std::string& advice);

}  // namespace lockstep::train
