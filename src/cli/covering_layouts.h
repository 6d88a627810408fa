#pragma once

#include <vector>

#include "layout/layout.h"

namespace lockstep::cli {

/// Layouts of up to `processes` processes that between them have every schedule, every kind of recomputation
/// and every way to update that leaves bits as they are: what `verify` tries if it is told none. The first is
/// one process.
std::vector<layout::Layout> covering_layouts(int processes);

}  // namespace lockstep::cli
