#pragma once

#include "compile/compiled_run.h"
#include "config/run_config.h"

namespace lockstep {

/// What of a config decides the programs.
CompileOptions compile_options(const RunConfig& config);

/// The programs of a config. Throws ConfigError if its layout does not fit the facts.
inline CompiledRun compile_run(const RunConfig& config, const CompileFacts& facts) {
  return CompiledRun(compile_options(config), facts);
}

}  // namespace lockstep
