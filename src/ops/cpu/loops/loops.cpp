#include "ops/cpu/loops/loops.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/instruction_set.h"
#include "lockstep/error.h"

namespace lockstep::ops {

namespace avx512 {
extern const Loops kLoops;
}
namespace avx2 {
extern const Loops kLoops;
}
namespace portable {
extern const Loops kLoops;
}

namespace {

/// REQUIRES: one of instruction_sets().
const Loops& loops_for(InstructionSet set) {
#if defined(LOCKSTEP_LOOPS_AVX512)
  if (set == InstructionSet::avx512) return avx512::kLoops;
#endif
#if defined(LOCKSTEP_LOOPS_AVX2)
  if (set == InstructionSet::avx2) return avx2::kLoops;
#endif
#if defined(LOCKSTEP_LOOPS_PORTABLE)
  if (set == InstructionSet::portable) return portable::kLoops;
#endif
  throw InternalError(std::string("there are no loops for ") + name_of(set));
}

}  // namespace

const Loops& loops() {
  static const Loops& found = loops_for(chosen_instruction_set());
  return found;
}

std::span<const Loops* const> all_loops() {
  static const auto all = [] {
    std::array<const Loops*, 3> found{};
    std::ranges::transform(instruction_sets(), found.begin(),
                           [](InstructionSet set) { return &loops_for(set); });
    return found;
  }();
  return {all.data(), instruction_sets().size()};
}

}  // namespace lockstep::ops
