#pragma once

#include <string>

namespace lockstep::cli {

/// Lines with lockstep's version and commit, compiler, devices, and libraries.
std::string version_text();

}  // namespace lockstep::cli
