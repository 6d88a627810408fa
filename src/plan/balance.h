#pragma once

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// The options with cuts of a pipeline (ParallelOptions::cuts) such that every stage's plan fits into `limit`
/// bytes. Among such divisions, as far as known without compiling them, it takes the one whose slowest stage
/// is fastest. Unchanged if no move is needed or helps: without a limit or stages, if cuts are stated, if the
/// division by time fits, or if no other does. Several pieces on a rank get equal parts of the room. Throws
/// ConfigError as CompiledRun does.
compile::CompileOptions balanced(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                 int64_t limit);

}  // namespace lockstep::plan
