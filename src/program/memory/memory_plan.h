#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "program/program.h"

namespace lockstep::program {

/// Buffers begin at multiples of it, and the plan rounds their sizes up to it.
inline constexpr int64_t kBufferAlignment = 256;
inline constexpr int64_t placed_bytes(int64_t size_bytes) {
  return (size_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

/// Bytes per category and per space: exactly what a device will allocate. Categories add up to the total. A
/// buffer outside the arena counts in its category. Each byte of the arena counts once: as activations if a
/// buffer of that category ever uses it, otherwise in another category with a buffer on it (workspace last),
/// or in workspace if there is none. So `workspace` is what the arena needs beyond the bytes that activations
/// use.
struct MemoryPlan {
  std::array<int64_t, 6> category_bytes{};         ///< by Category
  std::array<int64_t, kSpaceCount> space_bytes{};  ///< by Space
  int64_t total_bytes = 0;                         ///< sum over spaces, that of the host included
};

/// Gives every buffer its offset. Two arena buffers share bytes only if every access to one happens before
/// every access to the other in the program's partial order (lanes and dependencies). So no new dependency is
/// needed within an iteration; dependencies that reuse needs from one iteration to the next are added to the
/// program. Buffers of other spaces get separate ranges, in their order. Earlier offsets are replaced. The
/// same program gives the same plan on every machine. REQUIRES: the program's dependencies are complete
/// (derive_dependencies).
MemoryPlan plan_memory(Program& program);

std::string describe(const MemoryPlan& plan);  ///< the table printed at start

/// Bytes of all spaces if the programs with these plans share their memory and run one after the other. This
/// is what a rank allocates.
MemoryPlan combine_plans(std::span<const MemoryPlan> plans);

}  // namespace lockstep::program
