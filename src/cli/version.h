#pragma once

#include <string>

namespace lockstep::cli {

/// Lines that say which lockstep this is: version and commit, compiler, what it can compute on, libraries.
std::string version_text();

}  // namespace lockstep::cli
