#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/clock.h"
#include "base/index.h"

namespace lockstep::observe {

/// The parts of a process's time until the end of its first optimizer step.
enum class StartupPart {
  launch,     ///< loading the program, MPI, control plane
  config,     ///< config and output folder
  device,     ///< libraries, driver, choice of a GPU, its context
  programs,   ///< graph, programs of all ranks, their proof on rank 0
  data,       ///< opening data sets
  kernels,    ///< libraries' descriptors and tables
  memory,     ///< the device's and the host's
  agreement,  ///< with the other ranks, on what they run: the program is hashed
  communicators,
  parameters,  ///< initialised or restored
  first_step,
  other,  ///< executors, the run's files, an evaluation that a stop had put off
};
inline constexpr size_t kStartupParts = 12;
std::string_view name_of(StartupPart part);

/// Milliseconds by StartupPart. Parts do not overlap, so they add up.
struct StartupMilliseconds {
  std::array<double, kStartupParts> parts{};

  double& operator[](StartupPart part) { return nth(parts, part); }
  double operator[](StartupPart part) const { return nth(parts, part); }
  double total() const;
};

/// Divides the time from the process's start to the end of its first step. Thread-safety: one thread.
class StartupTimes {
 public:
  explicit StartupTimes(Clock::time_point process_start) : last_(process_start) {}

  /// Counts the time since the last call, or since the process's start, as `part`. Does nothing once the
  /// first step is complete.
  void end(StartupPart part, Clock::time_point now = Clock::now());
  /// Whether the first step is complete.
  bool complete() const { return complete_; }
  const StartupMilliseconds& milliseconds() const { return milliseconds_; }

 private:
  StartupMilliseconds milliseconds_;
  Clock::time_point last_;
  bool complete_ = false;
};

/// When the kernel started this process, to a clock tick (10 ms). So it includes loading libraries before
/// main.
Clock::time_point process_start();
/// The same in ticks since the system's boot, from the text of /proc/self/stat.
double start_ticks(std::string_view stat);

}  // namespace lockstep::observe
