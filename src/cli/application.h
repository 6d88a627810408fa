#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

/// The program, from its arguments (without its own name) to its exit code. Every exception ends here: it is
/// printed once, as "lockstep: error: ...", and becomes the code of include/lockstep/error.h.
int run_command_line(const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
