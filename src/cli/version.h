#pragma once

#include <string>

namespace lockstep::cli {

/// Lines with lockstep's version and commit, compiler, devices, and libraries.
std::string version_text();
/// "0.1.0, commit 0123456789ab"
std::string commit_text();

}  // namespace lockstep::cli
