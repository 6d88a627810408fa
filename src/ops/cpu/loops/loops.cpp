#include "ops/cpu/loops/loops.h"

#include <array>

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

}  // namespace

const Loops& loops() { return *choice().loops.front(); }

std::span<const Loops* const> all_loops() {
  const Choice& made = choice();
  return {made.loops.data(), made.count};
}

}  // namespace lockstep::ops
