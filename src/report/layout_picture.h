#pragma once

#include <string>

#include "report/run_folder.h"

namespace lockstep::report {

/// All processes of a run as SVG: a row for each stage of a pipeline, a column for each replica, and servers
/// below. Each says its rank, its host if there are several, and how much of a step it waits. `report`:
/// report.json. "" if it names no ranks, or more than can be seen.
std::string layout_picture(const Json& report);

}  // namespace lockstep::report
