#pragma once

#include <string>

namespace lockstep::cli {

/// The path of the config that a run has kept beside its checkpoints. `checkpoint`: the run, or one of its
/// checkpoints; `command`: its name, for the error. Throws ConfigError if there is none.
std::string kept_config_of(const std::string& checkpoint, const std::string& command);

}  // namespace lockstep::cli
