#pragma once

#include <optional>

#include "net/check.h"

namespace lockstep::net {

/// check_case in a process of its own, so that one that crashes, or does not end within minutes, is a
/// finding like others. REQUIRES: no thread of this process is in the middle of anything.
std::optional<Finding> check_apart(const Case& test_case, const CheckOptions& options = {},
                                   CheckReport* report = nullptr);

}  // namespace lockstep::net
