#pragma once

#include <optional>

#include "compile/compiled_run.h"
#include "layout/layout.h"

namespace lockstep::cli {

/// Facts of a job that need not be there. `several_hosts`: each process has a host of its own; otherwise all
/// of them share one.
compile::CompileFacts planned_facts(int processes, bool several_hosts, device::DeviceKind device);

/// As --world says (nothing: it is not given) or, without it, as the layout says, with one replica where it
/// says no number.
int planned_processes(std::optional<int> world_size, layout::Layout layout);

}  // namespace lockstep::cli
