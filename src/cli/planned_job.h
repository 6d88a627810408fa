#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "layout/layout.h"

namespace lockstep::cli {

/// On how many hosts the processes of a job would be that need not be there.
struct PlannedHosts {
  bool several = false;      ///< each process has a host of its own
  std::optional<int> count;  ///< so many hosts; neither: one

  /// Throws ConfigError if there are more than processes.
  int of(int processes) const;
};
/// --several-hosts and --hosts.
void add_planned_hosts(CLI::App& command, PlannedHosts& hosts);

/// As --world says (nothing: it is not given) or, without it, as the layout says, with one replica if it
/// says no number.
int planned_processes(std::optional<int> world_size, layout::Layout layout);

}  // namespace lockstep::cli
