#pragma once

#include <string>

namespace lockstep::compare {

/// The model of this machine's processors; "" if the system does not say.
std::string cpu_model();
/// "Linux 6.1.0".
std::string kernel_release();

}  // namespace lockstep::compare
