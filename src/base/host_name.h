#pragma once

#include <string>

namespace lockstep {

/// This host's name, as messages call it; never empty.
std::string host_name();

}  // namespace lockstep
