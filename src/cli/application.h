#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

/// Runs the program with its arguments (without its own name) and returns its exit code. All exceptions are
/// caught here, printed once as "lockstep: error: ...", and become an exit code of include/lockstep/error.h.
int run_command_line(const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
