#pragma once

#include <string>

namespace lockstep::config {

/// The library that reads configs: "Protocol Buffers 3.21.12".
std::string text_library();

}  // namespace lockstep::config
