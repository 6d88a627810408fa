#pragma once

#include <string>
#include <vector>

#include "report/run_folder.h"

namespace lockstep::report {

/// Runs as one self-contained HTML page without scripts, for light and dark backgrounds, narrow screens and
/// paper: losses, speed, where the time went, machines, layout, config. Several are laid over each other, and
/// the page says in what their configs differ. REQUIRES: at least one run, with names of their own.
std::string run_page(const std::vector<RunFolder>& runs);

/// Writes report.html into the folder of a run. Throws Error.
void write_run_page(const std::string& folder);

}  // namespace lockstep::report
