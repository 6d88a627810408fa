#include "program/ring_schedule.h"

namespace lockstep::program {

std::optional<RingPass> ring_pass_of(InstructionKind kind) {
  if (kind == InstructionKind::ring_reduce_scatter) return RingPass::reduce_scatter;
  if (kind == InstructionKind::ring_all_gather) return RingPass::all_gather;
  return {};
}

RingRound ring_round(RingPass pass, int rank, int ranks, int round) {
  const int behind = pass == RingPass::reduce_scatter ? round + 1 : round;  // from 0 to ranks - 1
  return {(rank - behind + ranks) % ranks, (rank - behind - 1 + ranks) % ranks};
}

}  // namespace lockstep::program
