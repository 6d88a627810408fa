#pragma once

#include "compile/compiled_run.h"
#include "config/run_config.h"

namespace lockstep::train {

/// The parts of a config that decide the programs.
compile::CompileOptions compile_options(const config::RunConfig& config);

/// The same, with stages of a pipeline that fit into device.memory_limit, if possible (plan::balanced).
compile::CompileOptions fitted_options(const config::RunConfig& config, const compile::CompileFacts& facts);

/// The programs of a config, whether or not they fit into device.memory_limit. Throws ConfigError if its
/// layout does not fit the facts.
inline compile::CompiledRun compile_run(const config::RunConfig& config, const compile::CompileFacts& facts) {
  return compile::CompiledRun(fitted_options(config, facts), facts);
}

}  // namespace lockstep::train
