#pragma once

#include <string>

namespace lockstep {

/// This host's name in messages; never empty.
std::string host_name();

}  // namespace lockstep
