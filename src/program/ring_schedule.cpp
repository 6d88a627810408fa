#include "program/ring_schedule.h"

namespace lockstep::program {

RingRound ring_round(RingPass pass, int rank, int ranks, int round) {
  const int behind = pass == RingPass::reduce_scatter ? round + 1 : round;  // from 0 to ranks - 1
  return {(rank - behind + ranks) % ranks, (rank - behind - 1 + ranks) % ranks};
}

}  // namespace lockstep::program
