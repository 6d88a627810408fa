#include "cli/planned_job.h"

#include <algorithm>
#include <numeric>

namespace lockstep::cli {

compile::CompileFacts planned_facts(int processes, bool several_hosts, device::DeviceKind device) {
  std::vector<int> hosts(static_cast<size_t>(processes), 0);
  if (several_hosts) std::iota(hosts.begin(), hosts.end(), 0);
  return {.world_size = processes,
          .shared_memory = processes > 1 && !several_hosts,
          .hosts = std::move(hosts),
          .device = device};
}

int planned_processes(std::optional<int> world_size, layout::Layout layout) {
  if (world_size) return *world_size;
  layout.dp = std::max(layout.dp, 1);
  return layout.world_size();
}

}  // namespace lockstep::cli
