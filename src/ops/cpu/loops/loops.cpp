#include "ops/cpu/loops/loops.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/error.h"

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

struct Choice {
  std::array<const Loops*, 3> loops{};
  size_t count = 0;

  void add(const Loops& more) { loops.at(count++) = &more; }

  Choice() {
#if defined(__x86_64__)
    // What CMakeLists.txt has the compiler use. The operating system's leave is asked for, too.
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (has_avx2 && has_avx512) add(avx512::kLoops);
    if (has_avx2) add(avx2::kLoops);
#endif
    add(portable::kLoops);
  }
};

const Choice& choice() {
  static const Choice made;
  return made;
}

const Loops& chosen() {
  const char* wanted = std::getenv("LOCKSTEP_INSTRUCTION_SET");
  if (wanted == nullptr || *wanted == 0) return *choice().loops.front();
  std::vector<std::string> names;
  for (const Loops* one : all_loops()) {
    if (one->instruction_set == std::string_view(wanted)) return *one;
    names.emplace_back(one->instruction_set);
  }
  throw ConfigError(fmt::format("LOCKSTEP_INSTRUCTION_SET is '{}'; this processor can do: {}", wanted,
                                fmt::join(names, ", ")));
}

}  // namespace

const Loops& loops() {
  static const Loops& found = chosen();
  return found;
}

std::span<const Loops* const> all_loops() {
  const Choice& made = choice();
  return {made.loops.data(), made.count};
}

}  // namespace lockstep::ops
