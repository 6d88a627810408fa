#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// Another way to run the same model, compiled.
struct WayOut {
  layout::Layout layout;    ///< resolved
  int64_t micro_batch = 0;  ///< 0: as in the options
  int64_t bytes = 0;        ///< of the fullest rank
  double time = 0;          ///< of a step (estimate_step), beside that of the layout that does not fit
  double seconds = 0;       ///< where there is a profile
};

/// What fits into `limit` bytes of a rank where `options` do not: changes of one thing, for each the smallest
/// that suffices: recomputation, micro-batch, sharded optimizer, stages (with as many micro-batches as keep
/// them busy). If none does, one with several changes, as few as suffice. Ascending by time, and then by
/// processes. `closest`: where nothing fits, what takes least.
struct WaysOut {
  std::vector<WayOut> fitting;
  std::optional<WayOut> closest;
};
WaysOut ways_out(const compile::CompileOptions& options, const compile::CompileFacts& facts, int64_t limit);

/// What to say where a rank's plan takes more than `limit` bytes: its table and the ways out; "" if none
/// does, or `limit` is 0. The same on every rank.
std::string excess(const compile::CompiledRun& run, const compile::CompileOptions& options,
                   const compile::CompileFacts& facts, int64_t limit);
/// Throws ConfigError with that.
void require_fits(const compile::CompiledRun& run, const compile::CompileOptions& options,
                  const compile::CompileFacts& facts, int64_t limit);

}  // namespace lockstep::plan
