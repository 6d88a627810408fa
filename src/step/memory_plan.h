#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "step/program.h"

namespace lockstep {

/// Bytes per category, and per space: exactly what a device will allocate.
struct MemoryPlan {
  std::array<int64_t, 6> category_bytes{};   ///< by Category; activations and workspace share the arena
  std::array<int64_t, 6> space_bytes{};      ///< by Space
  int64_t total_bytes = 0;                   ///< sum over spaces
};

/// Gives every buffer its offset. Two arena buffers share bytes only where every access to one happens before every
/// access to the other in the program's partial order (lanes and dependencies), so no new dependency is needed
/// within an iteration; those that reuse makes necessary from one iteration to the next are added to the program.
/// Buffers of other spaces get ranges of their own. The same program gives the same plan on every machine.
MemoryPlan plan_memory(Program& program);

std::string describe(const MemoryPlan& plan);   ///< the table printed at start

}  // namespace lockstep
