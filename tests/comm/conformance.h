#pragma once

#include <ostream>
#include <span>
#include <string_view>

#include "comm/communicator.h"

namespace lockstep::comm {

/// What every backend of Communicator must pass, for every number of ranks. A check is run by all ranks of
/// `world` at once, on threads or in processes; it uses GoogleTest's EXPECT macros, and throws where it
/// cannot go on. It may leave `world` dead. Buffers live until the process ends where a check leaves
/// operations behind.
struct ConformanceCheck {
  std::string_view name;
  void (*run)(Communicator& world);
};

inline void PrintTo(const ConformanceCheck& check, std::ostream* out) { *out << check.name; }

/// The table: a backend's test iterates it, and gives each check a world of its own.
std::span<const ConformanceCheck> conformance_checks();

/// A check of communicators that can leave ranks out (regroup); the world has at least two.
void regroup_needs_nothing_of_others(Communicator& world);

/// All checks, each in a duplicate of `world` (split with one color).
void run_conformance(Communicator& world);

// One list for each source file of the suite.
std::span<const ConformanceCheck> collective_checks();
std::span<const ConformanceCheck> exchange_checks();
std::span<const ConformanceCheck> group_checks();
std::span<const ConformanceCheck> failure_checks();
std::span<const ConformanceCheck> port_checks();

}  // namespace lockstep::comm
