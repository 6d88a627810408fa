#pragma once

#include <functional>
#include <span>
#include <vector>

#include "program/program.h"

namespace lockstep::plan {

/// How long communication takes, in any unit of time. 0: no time.
struct CommunicationTimes {
  /// Per message of an exchange, from when both of its ends are posted to its first byte.
  double latency = 0;
  /// The same per round of a ring; in other collectives, per halving of the members until one is left.
  double meeting = 0;
  /// Per byte from host to host. Everything that leaves a host, or reaches it, shares that direction of its
  /// link.
  double link_per_byte = 0;
  /// For links that are limited by a token bucket: bytes that pass at once in a direction that was idle for
  /// as long as they would take.
  double link_burst_bytes = 0;
  /// Time of the thread at either end, which computes nothing meanwhile, per byte from host to host; and per
  /// byte within a host.
  double handling_per_byte = 0, local_handling_per_byte = 0;
  double sum_per_byte = 0;  ///< per byte that a ring's rank adds up
  /// Per byte that collectives sum in shared memory of a host's ranks.
  double shared_sum_per_byte = 0;
};

/// How long instructions take.
struct InstructionTimes {
  /// The time of an instruction that does not communicate.
  std::function<double(int rank, const program::Instruction&)> compute;

  CommunicationTimes communication = {};
  std::vector<int> hosts = {};  ///< of each rank; none: all are on one host

  /// Whether a rank's communications start in program order over all its lanes, as with one thread; otherwise
  /// each starts as soon as its lane reaches it, as on streams.
  bool communicates_in_order = true;
  /// Whether a rank's lanes share one thread: among instructions that are ready, the first in program order
  /// runs.
  bool one_thread = false;
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

/// When each instruction of a job would run: a pure function of the programs of all ranks, run `iterations`
/// times. Lanes run their instructions in order. An instruction starts when its lane is free and its
/// dependencies are complete. An iteration begins on a rank when the report of the preceding iteration is
/// known and the one before that is complete.
///
/// A message occupies its lane on both ends until it has arrived. It passes in pieces of kMessagePieceBytes,
/// which alternate with those of other messages. A ring passes its rounds as messages. Other collectives
/// take, from when all members have come, the time of the bytes that program::traffic_of() counts.
///
/// Throws InternalError, which names what each rank waits for, if ranks cannot finish. Throws ConfigError for
/// programs of sessions (push, pull, serve), which do not determine when ranks meet. REQUIRES: messages
/// match, as the checker proves; with one_thread, buffers are placed.
std::vector<ProgramTimeline> replay(std::span<const program::Program> programs, const InstructionTimes& times,
                                    int iterations = 1);
inline constexpr int64_t kMessagePieceBytes = 128 << 10;

}  // namespace lockstep::plan
