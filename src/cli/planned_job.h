#pragma once

#include <optional>

#include "layout/layout.h"

namespace lockstep::cli {

/// As --world says (nothing: it is not given) or, without it, as the layout says, with one replica where it
/// says no number.
int planned_processes(std::optional<int> world_size, layout::Layout layout);

}  // namespace lockstep::cli
