#pragma once

#include <optional>

#include "program/program.h"

namespace lockstep::program {

/// The two passes around a ring. Each rank of a group owns one block, which has the rank's number.
enum class RingPass {
  reduce_scatter,  ///< what is received is added to the rank's own bytes of that block
  all_gather,      ///< what is received replaces the rank's bytes
};

/// The pass that instructions of this kind make; nothing: they are no ring's.
std::optional<RingPass> ring_pass_of(InstructionKind kind);

/// What a rank sends to the next one, and receives from the one before it, at the same time.
struct RingRound {
  int send;     ///< block
  int receive;  ///< block
  bool operator==(const RingRound&) const = default;
};

/// A pass takes ranks - 1 rounds, numbered from 0. A block's sum begins at the rank after its owner, goes
/// around, and is complete at its owner. Gathering begins at the owner. For three ranks, as send>receive:
///
///     rank               0     1     2                    0     1     2
///     reduce-scatter 0   2>1   0>2   1>0     all-gather 0   0>2   1>0   2>1
///                    1   1>0   2>1   0>2                1   2>1   0>2   1>0
RingRound ring_round(RingPass pass, int rank, int ranks, int round);

}  // namespace lockstep::program
