#pragma once

#include <vector>

#include "doctor/check.h"
#include "ops/cpu/speed.h"

namespace lockstep::doctor {

/// Whether the loops of trainings on CPUs reach at least half of what the processor can do.
Finding judge_arithmetic_speed(const ops::ArithmeticSpeed& speed);
std::vector<Finding> look_at_arithmetic_speed(const Request& request);

}  // namespace lockstep::doctor
