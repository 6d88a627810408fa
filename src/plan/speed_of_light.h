#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "compile/compiled_run.h"
#include "program/program.h"

namespace lockstep::plan {

/// What a device could do at best, for everything that a rank has of it.
struct MachineSpeed {
  double flops_per_second = 0;  ///< of products; a multiply-add counts as two
  double bytes_per_second = 0;  ///< to and from memory
  /// The same of an operation that moves at most kCachedBytes, which caches may hold; 0: as from memory.
  double cached_bytes_per_second = 0;
  bool operator==(const MachineSpeed&) const = default;
};

/// Caches of processors may hold what an operation of no more bytes moves.
inline constexpr double kCachedBytes = 16 << 20;

/// What a rank's step asks of its device.
struct StepWork {
  double flops = 0;          ///< of layers
  double least_seconds = 0;  ///< the sum, over operations, of the longer of computing and moving bytes
};
/// Layers count as ops::cost() says, once for each pass; everything else that computes counts as the bytes of
/// its operands. Messages and loading do not count.
StepWork work_of_step(const compile::CompiledRun& run, const program::Program& step,
                      const MachineSpeed& speed);

/// Of a GPU by the name that its driver gives, with 16-bit products (dense) as its vendor states them;
/// nothing for others.
std::optional<MachineSpeed> speed_of_gpu(std::string_view name);

/// Where the speed of a core of this host is kept: lockstep/speed-HOST.json in XDG_CACHE_HOME, or in
/// ~/.cache; "" without either.
std::string kept_speed_path();
/// Writes what `lockstep bench` has measured of one core. What the file has already is kept if it is more: a
/// measurement beside other work shows less than the core can do. Throws IoError, which names the file.
void keep_speed(const std::string& path, const MachineSpeed& speed);
/// Nothing if there is no such file, or if it is damaged.
std::optional<MachineSpeed> kept_speed(const std::string& path);

}  // namespace lockstep::plan
