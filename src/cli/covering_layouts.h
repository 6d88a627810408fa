#pragma once

#include <vector>

#include "layout/layout.h"

namespace lockstep::cli {

/// Layouts of up to `processes` processes that together have every schedule, every kind of recomputation, and
/// every way to update that keeps bits equal. They are the default of `verify`. The first is one process.
std::vector<layout::Layout> covering_layouts(int processes);

}  // namespace lockstep::cli
