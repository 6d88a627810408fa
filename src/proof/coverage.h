#pragma once

#include <string>
#include <vector>

#include "proof/check_world.h"
#include "proof/expressions.h"

namespace lockstep::proof {

/// Which bytes of the model's parameters `coverage` leaves out first, or, if each may be there only `once`,
/// names twice: "not 'w' from byte 128", "'w' twice from byte 64"; "" if it is all of them.
std::string coverage_gap(const std::vector<ModelParameter>& parameters,
                         std::vector<Expressions::Coverage> coverage, bool once);

}  // namespace lockstep::proof
