#include "ops/cpu/loops/loops.h"

#include <algorithm>
#include <array>

#include "base/instruction_set.h"

namespace lockstep::ops {

#if defined(__x86_64__)
namespace avx512 {
extern const Loops kLoops;
}
namespace avx2 {
extern const Loops kLoops;
}
#endif
namespace portable {
extern const Loops kLoops;
}

namespace {

const Loops& loops_for(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return avx512::kLoops;
  if (set == InstructionSet::avx2) return avx2::kLoops;
#endif
  static_cast<void>(set);
  return portable::kLoops;
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
