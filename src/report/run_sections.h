#pragma once

#include <string>
#include <vector>

#include "report/run_folder.h"

namespace lockstep::report {

using Runs = std::vector<RunFolder>;

// Sections of a page about runs, each with its heading; "" if there is nothing to show.
std::string results_section(const Runs& runs);
std::string learning_section(const Runs& runs);
std::string text_section(const Runs& runs);
std::string speed_section(const Runs& runs);
std::string time_section(const Runs& runs);
std::string machines_section(const Runs& runs);
std::string layout_section(const Runs& runs);
std::string config_section(const Runs& runs);

}  // namespace lockstep::report
