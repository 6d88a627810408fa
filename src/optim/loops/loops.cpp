#include "optim/loops/loops.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/instruction_set.h"
#include "lockstep/error.h"

namespace lockstep::optim {

namespace avx512 {
extern const UpdateLoops kUpdateLoops;
}
namespace avx2 {
extern const UpdateLoops kUpdateLoops;
}
namespace portable {
extern const UpdateLoops kUpdateLoops;
}

namespace {

/// REQUIRES: one of instruction_sets().
const UpdateLoops& loops_for(InstructionSet set) {
#if defined(LOCKSTEP_LOOPS_AVX512)
  if (set == InstructionSet::avx512) return avx512::kUpdateLoops;
#endif
#if defined(LOCKSTEP_LOOPS_AVX2)
  if (set == InstructionSet::avx2) return avx2::kUpdateLoops;
#endif
#if defined(LOCKSTEP_LOOPS_PORTABLE)
  if (set == InstructionSet::portable) return portable::kUpdateLoops;
#endif
  throw InternalError(std::string("there are no loops for ") + name_of(set));
}

}  // namespace

const UpdateLoops& update_loops() {
  static const UpdateLoops& found = loops_for(chosen_instruction_set());
  return found;
}

std::span<const UpdateLoops* const> all_update_loops() {
  static const auto all = [] {
    std::array<const UpdateLoops*, 3> found{};
    std::ranges::transform(instruction_sets(), found.begin(),
                           [](InstructionSet set) { return &loops_for(set); });
    return found;
  }();
  return {all.data(), instruction_sets().size()};
}

}  // namespace lockstep::optim
