#pragma once

#include <random>
#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// What random_program draws from.
struct RandomProgramOptions {
  int most_lanes = 4;
  int instructions = 40;
  int buffers = 12;
  int operands = 3;         ///< of an instruction, at most
  bool parts = false;       ///< operands may cover a part of their buffer
  double dependency = 0.3;  ///< probability that an instruction declares one, of distance 0 or 1
};

/// Instructions of no particular kind on random lanes. Most operands name buffers near the instruction's
/// place in the program, so that some buffers are finished before others begin; a few name any. There are
/// empty buffers and some that nothing uses. Dependencies are those drawn, not what the accesses would need.
Program random_program(std::mt19937& random, const RandomProgramOptions& options);

/// before[a][b]: node a happens before node b, over `iterations`, by plain search along lanes and
/// dependencies. Nodes are numbered as in HappensBefore.
std::vector<std::vector<bool>> plain_order(const Program& program, int iterations);

}  // namespace lockstep::program
