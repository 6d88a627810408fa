#pragma once

#include <functional>
#include <span>
#include <vector>

#include "program/program.h"

namespace lockstep::plan {

/// How long instructions take, in any one unit of time.
struct InstructionTimes {
  /// Of an instruction that does not communicate.
  std::function<double(int rank, const program::Instruction&)> compute;
  /// Of a message, from when both of its ends are posted. Collectives take no time from when all members have
  /// come to them.
  double transfer = 0;
  /// Whether a rank's communications start in program order over all its lanes, as one thread that starts
  /// them has it, or each as soon as its own lane comes to it, as on streams.
  bool communicates_in_order = true;
};

struct TimedInstruction {
  double start = 0, end = 0;
};

/// One run of the programs of all ranks.
struct ProgramTimeline {
  std::vector<std::vector<TimedInstruction>> ranks;  ///< by rank and instruction
  std::vector<double> busy;                          ///< of each rank: time that its compute lanes work
  double begin = 0, end = 0;                         ///< of the first instruction, of the last

  double duration() const { return end - begin; }
};

/// When each instruction of a job would run: a pure function of the programs of all ranks, by rank, run
/// `iterations` times. Lanes run their instructions in order, side by side. An instruction starts when its
/// lane is free and what it depends on is complete; an iteration begins on a rank when the report of the one
/// before is known and all of the one before that is complete. Nothing else is limited: neither cores that
/// lanes share nor links that messages of several lanes share. A message holds its lane on both ends until
/// it is there. Throws InternalError, naming what each rank waits for, if they cannot come to their ends;
/// ConfigError for programs of sessions (push, pull, serve), which do not say who meets whom when. REQUIRES:
/// messages match, as the checker proves.
std::vector<ProgramTimeline> replay(std::span<const program::Program> programs, const InstructionTimes& times,
                                    int iterations = 1);

}  // namespace lockstep::plan
