#include "optim/loops/loops.h"

#include <algorithm>
#include <array>

#include "base/instruction_set.h"

namespace lockstep::optim {

#if defined(__x86_64__)
namespace avx512 {
extern const UpdateLoops kUpdateLoops;
}
namespace avx2 {
extern const UpdateLoops kUpdateLoops;
}
#endif
namespace portable {
extern const UpdateLoops kUpdateLoops;
}

namespace {

const UpdateLoops& loops_for(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return avx512::kUpdateLoops;
  if (set == InstructionSet::avx2) return avx2::kUpdateLoops;
#endif
  static_cast<void>(set);
  return portable::kUpdateLoops;
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
