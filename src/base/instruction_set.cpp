#include "base/instruction_set.h"

#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Found {
  std::array<InstructionSet, 3> sets{};
  size_t count = 0;

  Found() {
    // What cmake/loops.cmake has the compiler use. The operating system's leave is asked for, too.
#if defined(__x86_64__)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#if defined(LOCKSTEP_LOOPS_AVX512)
    if (has_avx2 && has_avx512) sets.at(count++) = InstructionSet::avx512;
#endif
#if defined(LOCKSTEP_LOOPS_AVX2)
    if (has_avx2) sets.at(count++) = InstructionSet::avx2;
#endif
#if defined(LOCKSTEP_LOOPS_PORTABLE)
    sets.at(count++) = InstructionSet::portable;
#endif
    if (count == 0)
      throw ConfigError(
          "this processor lacks the one instruction set that the program was built for; build it "
          "anew on this machine, or with -DLOCKSTEP_LOOPS=ALL");
  }
};

InstructionSet choose() {
  const char* wanted = std::getenv("LOCKSTEP_INSTRUCTION_SET");
  if (wanted == nullptr || *wanted == 0) return instruction_sets().front();
  std::vector<std::string_view> names;
  for (const InstructionSet set : instruction_sets()) {
    if (name_of(set) == std::string_view(wanted)) return set;
    names.emplace_back(name_of(set));
  }
  throw ConfigError(fmt::format("LOCKSTEP_INSTRUCTION_SET is '{}'; this processor and build can do: {}",
                                wanted, fmt::join(names, ", ")));
}

}  // namespace

const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx512:
      return "AVX-512";
    case InstructionSet::avx2:
      return "AVX2";
    case InstructionSet::portable:
      break;
  }
  return "portable";
}

std::span<const InstructionSet> instruction_sets() {
  static const Found found;
  return {found.sets.data(), found.count};
}

InstructionSet chosen_instruction_set() {
  static const InstructionSet chosen = choose();
  return chosen;
}

}  // namespace lockstep
