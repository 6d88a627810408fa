#pragma once

#include <cstdint>
#include <string>

#include "run/serve/world.h"

namespace lockstep::run {

struct Found {
  int64_t states = 0;  ///< exploration: different ones; walks: visited ones
  int64_t ends = 0;    ///< of these, with nothing left to happen
  std::string wrong;   ///< the first thing that is, after what has happened; empty: nothing
};

/// Every state that a scene can come to, whatever the order in which things happen, the nearest first: what
/// is found wrong is shown by a shortest history. States are told apart by 64 bits.
Found explore(const Scene& scene);

/// One history to its end, of happenings drawn at random. Some workers and servers are slow: what concerns
/// them is drawn less often.
Found wander(const Scene& scene, uint64_t seed);

}  // namespace lockstep::run
