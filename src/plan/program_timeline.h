#pragma once

#include <functional>
#include <span>
#include <vector>

#include "program/program.h"

namespace lockstep::plan {

/// How long communication takes, in any one unit of time. What is left at 0 takes none.
struct CommunicationTimes {
  /// Of each message of an exchange, from when both of its ends are posted to its first byte.
  double latency = 0;
  /// The same of each round of a ring, and of other collectives for every time that their members have to be
  /// halved to leave one.
  double meeting = 0;
  /// Of a byte from host to host. What leaves a host, or reaches one, shares that direction of its link.
  double link_per_byte = 0;
  /// That pass at once in a direction of a link that was idle for as long as they would take: of links that
  /// are limited by a token bucket.
  double link_burst_bytes = 0;
  /// Of a byte from host to host, of the thread of either end, which computes nothing meanwhile; and of one
  /// that stays on a host.
  double handling_per_byte = 0, local_handling_per_byte = 0;
  double sum_per_byte = 0;  ///< of what a ring's rank adds up
  /// Of a byte that collectives sum in memory which a host's ranks share.
  double shared_sum_per_byte = 0;
};

/// How long instructions take.
struct InstructionTimes {
  /// Of an instruction that does not communicate.
  std::function<double(int rank, const program::Instruction&)> compute;

  CommunicationTimes communication = {};
  std::vector<int> hosts = {};  ///< of each rank; none: all are on one host

  /// Whether a rank's communications start in program order over all its lanes, as one thread that starts
  /// them has it, or each as soon as its own lane comes to it, as on streams.
  bool communicates_in_order = true;
  /// Whether a rank's lanes share one thread: of those that could, the instruction that comes first runs.
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

/// When each instruction of a job would run: a pure function of the programs of all ranks, by rank, run
/// `iterations` times. Lanes run their instructions in order. An instruction starts when its lane is free and
/// what it depends on is complete; an iteration begins on a rank when the report of the one before is known
/// and all of the one before that is complete. A message holds its lane on both ends until it is there; it
/// passes in pieces of kMessagePieceBytes, which take turns with those of others. A ring passes its rounds as
/// messages; other collectives take, from when all members have come, the time of the bytes that
/// program::traffic_of() counts. Throws InternalError, naming what each rank waits for, if they cannot come
/// to their ends; ConfigError for programs of sessions (push, pull, serve), which do not say who meets whom
/// when. REQUIRES: messages match, as the checker proves; with one_thread, buffers are placed.
std::vector<ProgramTimeline> replay(std::span<const program::Program> programs, const InstructionTimes& times,
                                    int iterations = 1);
inline constexpr int64_t kMessagePieceBytes = 128 << 10;

}  // namespace lockstep::plan
