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
  double time = 0;          ///< of a step (estimate_step), relative to the layout that does not fit
  double seconds = 0;       ///< if there is a profile
};

/// Ways that fit into `limit` bytes per rank if `options` do not. They change one thing, as little as
/// suffices: recomputation, micro-batch, sharded optimizer, stages (with enough micro-batches to keep them
/// busy). If no single change suffices: one way with as few changes as possible. Ascending by time, then by
/// processes. `closest`: if nothing fits, the way that takes least.
struct WaysOut {
  std::vector<WayOut> fitting;
  std::optional<WayOut> closest;
};
WaysOut ways_out(const compile::CompileOptions& options, const compile::CompileFacts& facts, int64_t limit);

/// The message if a rank's plan takes more than `limit` bytes: its table and the ways out. "" if none does,
/// or if `limit` is 0. The same on every rank.
std::string excess(const compile::CompiledRun& run, const compile::CompileOptions& options,
                   const compile::CompileFacts& facts, int64_t limit);
/// Throws ConfigError with that message, if there is one.
void require_fits(const compile::CompiledRun& run, const compile::CompileOptions& options,
                  const compile::CompileFacts& facts, int64_t limit);

}  // namespace lockstep::plan
