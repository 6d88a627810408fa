#pragma once

#include <string>
#include <vector>

#include "proof/check_world.h"
#include "proof/expressions.h"

namespace lockstep::proof {

/// The first bytes of the model's parameters that `coverage` lacks or, with `once`, has twice: "not 'w' from
/// byte 128", "'w' twice from byte 64"; "" if it has all bytes.
std::string coverage_gap(const std::vector<ModelParameter>& parameters,
                         std::vector<Expressions::Coverage> coverage, bool once);

}  // namespace lockstep::proof
