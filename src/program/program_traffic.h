#pragma once

#include <cstdint>

#include "program/program.h"

namespace lockstep::program {

/// What a rank sends in one iteration of a program, in theory. Sends of exchanges, and of the rounds of a
/// ring, count as they stand. A
/// collective of n ranks on N bytes counts as its best algorithm sends from each of them: 2(n-1)/n N for an
/// all-reduce, (n-1)/n N for a reduce-scatter, an all-gather, an agreement and (on the average over ranks) a
/// broadcast. Headers, acknowledgements and what a library does otherwise come on top. Sums in memory that
/// ranks share send nothing.
struct ProgramTraffic {
  int64_t sent_bytes = 0;
  /// Of these, what exchanges, rings, pushes and answers send, which is counted where they run; and what they
  /// receive.
  int64_t exchanged_sent_bytes = 0, exchanged_received_bytes = 0;
  int64_t shared_memory_bytes = 0;  ///< of data that collectives add up in memory that their group shares
};

/// Of one iteration. A `serve` counts with one push and one pull of each of its workers, which is what a step
/// of all workers takes.
ProgramTraffic traffic_of(const Program& program);
/// Of one of its instructions.
ProgramTraffic traffic_of(const Program& program, const Instruction& instruction);

}  // namespace lockstep::program
