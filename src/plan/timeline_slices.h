#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compile/compiled_run.h"
#include "observe/timeline/timeline.h"
#include "ops/op.h"
#include "program/program.h"

namespace lockstep::plan {

/// The layers of a segment: "first to last".
std::string layers_of(const compile::CompiledRun& run, int segment);

/// Adds the arguments "step", counted from 1, and with mode=async "push", counted from 1 within the step.
void add_step(const compile::CompiledRun& run, uint64_t iteration, observe::TimelineSlice& slice);

/// Rows and slices of one rank's program for a timeline: names, bytes, and numbers of messages, by which
/// arrows find their ends without any communication. Row 0 is of steps and other phases, then come the
/// program's lanes, then a row of waits. `run` and `program` outlive it.
class TimelineSlices {
 public:
  TimelineSlices(const compile::CompiledRun& run, const program::Program& program);

  static constexpr int kPhaseRow = 0;
  std::vector<observe::TimelineRow> rows() const;
  int wait_row() const { return static_cast<int>(program_.lanes.size()) + 1; }
  /// The first row that this does not use.
  int free_row() const { return wait_row() + 1; }

  /// Times in microseconds.
  observe::TimelineSlice of_instruction(int instruction, uint64_t iteration, double begin, double end) const;
  observe::TimelineSlice of_kernel(int instruction, int node, ops::KernelPhase phase, double begin,
                                   double end) const;
  /// A wait for an instruction.
  observe::TimelineSlice of_wait(int instruction, double begin, double end) const;
  /// A step, counted from 1, or another phase.
  static observe::TimelineSlice of_phase(std::string name, double begin, double end);
  /// A worker waits until it may begin a step.
  observe::TimelineSlice of_wait_for_grant(double begin, double end) const;

  /// The waits of compute lanes in one iteration whose lanes work by themselves: gaps before instructions
  /// that depend on one which ended in the gap. `times`: of each instruction.
  struct Times {
    double begin = 0, end = 0;
  };
  std::vector<observe::TimelineSlice> waits_between(std::span<const Times> times) const;

 private:
  struct Messages {
    std::vector<uint64_t> sends, receives;  ///< of iteration 0
    int server = -1, range = -1;            ///< of a push or a pull
  };
  std::string name_of(int instruction) const;
  std::string name_of_exchange(const program::Instruction& instruction) const;
  void number_messages();
  void find_ranges();

  const compile::CompiledRun& run_;
  const program::Program& program_;
  std::vector<Messages> messages_;  // by instruction
};

/// A step as it is predicted, in the form of a measured timeline: see sketch_step(). With a profile times are
/// the profile's; without one the step is drawn as kStepWithoutProfileUs long, and the timeline says so.
/// Throws ConfigError for programs of sessions.
observe::Timeline predict_timeline(const compile::CompiledRun& run,
                                   std::span<const program::Program> programs, const std::vector<int>& hosts);
inline constexpr double kStepWithoutProfileUs = 1000;

}  // namespace lockstep::plan
