#pragma once

#include "compile/compiled_run.h"
#include "config/run_config.h"

namespace lockstep::train {

/// What of a config decides the programs.
compile::CompileOptions compile_options(const config::RunConfig& config);

/// The programs of a config. Throws ConfigError if its layout does not fit the facts.
inline compile::CompiledRun compile_run(const config::RunConfig& config, const compile::CompileFacts& facts) {
  return compile::CompiledRun(compile_options(config), facts);
}

}  // namespace lockstep::train
