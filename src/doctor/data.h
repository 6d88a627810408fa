#pragma once

#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

/// With a config: opens its data as a training would, every file of it. Without one: reads every file of
/// --data-dir, not of folders within, to its end or for a few seconds.
std::vector<Verdict> look_at_data(const Request& request);

}  // namespace lockstep::doctor
