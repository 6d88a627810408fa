#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compiled_run.h"
#include "observe/timeline/timeline.h"
#include "program/program.h"

namespace lockstep::plan {

/// Numbers of the messages of a session, which worker and server derive alike: of a step's push to a range of
/// a server, and of the server's answer. Ranges count from 0 at each server.
uint64_t push_number(int worker, int server, int range, uint64_t iteration);
uint64_t pull_number(int worker, int server, int range, uint64_t iteration);

/// How many iterations of workers' programs make an optimizer step: with mode=async as many as pushes.
int64_t iterations_per_step(const compile::CompiledRun& run);
/// Pushes of each range that a server applies in an iteration: of all workers or, if an iteration is one
/// worker's, 1. 0 without sessions.
int pushes_per_iteration(const compile::CompiledRun& run);

/// Rows and slices of what a server does in sessions: a row for the updates that it computes, and for each
/// worker a row of pushes that land and a row of answers. `run` and `serve` outlive it.
class ServingSlices {
 public:
  /// `serve`: the rank's program, without instructions if it is no server; `first_row`: the first free one.
  ServingSlices(const compile::CompiledRun& run, const program::Program& serve, int first_row);

  std::vector<observe::TimelineRow> rows() const;

  // `instruction`: the `serve` of the range; `iteration`: of the worker's step. Times in microseconds.
  observe::TimelineSlice of_landing(int instruction, int worker, uint64_t iteration, double begin,
                                    double end) const;
  /// `worker`: whose push it is; -1: of all workers.
  observe::TimelineSlice of_update(int instruction, int worker, uint64_t iteration, double begin,
                                   double end) const;
  observe::TimelineSlice of_answer(int instruction, int worker, uint64_t iteration, double begin,
                                   double end) const;

 private:
  observe::TimelineSlice slice(int row, int instruction, uint64_t iteration, double begin, double end) const;
  int range_of(int instruction) const;

  const compile::CompiledRun& run_;
  const program::Program& serve_;
  int first_row_;
  int workers_ = 0;  // 0: it serves none
};

}  // namespace lockstep::plan
