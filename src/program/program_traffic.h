#pragma once

#include <cstdint>

#include "program/program.h"

namespace lockstep::program {

/// The bytes that a rank sends in one iteration of a program, in theory. Sends of exchanges and rings count
/// as they are. A collective of n ranks on N bytes counts as its best algorithm, per rank: 2(n-1)/n N for an
/// all-reduce, (n-1)/n N for an agreement. Headers, acknowledgements and a library's deviations come on top.
/// Sums in shared memory send nothing.
struct ProgramTraffic {
  int64_t sent_bytes = 0;
  /// Of these, the bytes that exchanges, rings, pushes and answers send, which are counted as they run; and
  /// the bytes that they receive.
  int64_t exchanged_sent_bytes = 0, exchanged_received_bytes = 0;
  int64_t shared_memory_bytes = 0;  ///< bytes that collectives add up in memory which their group shares
};

/// The traffic of one iteration. A `serve` counts one push and one pull of each of its workers, as in a step
/// of all workers.
ProgramTraffic traffic_of(const Program& program);
/// The traffic of one of its instructions.
ProgramTraffic traffic_of(const Program& program, const Instruction& instruction);

}  // namespace lockstep::program
