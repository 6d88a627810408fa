#pragma once

#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

/// With a config: opens all of its data as a training would. Without one: reads every file of --data-dir,
/// without subfolders, to its end or for a few seconds.
std::vector<Finding> look_at_data(const Request& request);

}  // namespace lockstep::doctor
