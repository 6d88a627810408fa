#pragma once

#include <functional>
#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// Layouts for as many workers as `run` has that communicate otherwise, at most three: sums by all-reduce,
/// servers on the workers, twice the servers, or two stages. All of them can be compiled, and dp is left out,
/// as `compare` takes them. The result does not say that any of them is faster. `gets_on` (may be empty) is
/// called before each is compiled; what it throws ends the search.
std::vector<layout::Layout> other_layouts(const compile::CompiledRun& run,
                                          const compile::CompileOptions& options,
                                          const compile::CompileFacts& facts,
                                          const std::function<void()>& gets_on = {});

}  // namespace lockstep::plan
