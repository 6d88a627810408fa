#pragma once

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// The options with the cuts of a pipeline (ParallelOptions::cuts) for which every stage's plan fits into
/// `limit` bytes: of the divisions that do, as far as can be told without compiling them, the one whose
/// slowest stage is fastest. Unchanged where nothing needs to be moved or nothing helps: without a limit or
/// stages, where cuts are stated, where the division by time alone fits, or no other does. Of several pieces
/// on a rank each gets an equal part of the room. Throws ConfigError as CompiledRun does.
compile::CompileOptions balanced(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                 int64_t limit);

}  // namespace lockstep::plan
