#include "cli/planned_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep::cli {

int PlannedHosts::of(int processes) const {
  if (several) return processes;
  if (count.value_or(1) > processes)
    throw ConfigError(fmt::format("--hosts {}: the job has {} process{}; give at most as many hosts", *count,
                                  processes, processes == 1 ? "" : "es"));
  return count.value_or(1);
}

void add_planned_hosts(CLI::App& command, PlannedHosts& hosts) {
  CLI::Option* several =
      command.add_flag("--several-hosts", hosts.several,
                       "Put each process on its own host, which changes how gradients are summed");
  command
      .add_option(
          "--hosts", hosts.count,
          "Number of hosts, among which processes are divided in the order of their ranks; default: 1")
      ->check(CLI::Range(1, layout::kMostProcesses))
      ->excludes(several);
}

int planned_processes(std::optional<int> world_size, layout::Layout layout) {
  if (world_size) return *world_size;
  layout.dp = std::max(layout.dp, 1);
  return layout.world_size();
}

}  // namespace lockstep::cli
