#include "cli/planned_job.h"

#include <algorithm>

namespace lockstep::cli {

int planned_processes(std::optional<int> world_size, layout::Layout layout) {
  if (world_size) return *world_size;
  layout.dp = std::max(layout.dp, 1);
  return layout.world_size();
}

}  // namespace lockstep::cli
