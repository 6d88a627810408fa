#pragma once

#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// By instruction: whether an executor may start it while the one before it in its lane is under way. Both
/// are exchanges then, and neither writes what the other one touches: what comes behind them in the lane, or
/// depends on them, cannot tell, since each is complete in its turn. The first of a lane waits for its end in
/// the iteration before. REQUIRES: buffers are placed.
std::vector<bool> independent_of_predecessor(const Program& program);

}  // namespace lockstep::program
