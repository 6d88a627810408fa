#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::jobs {

/// The hosts that a hostfile names, in its order. `path` is for messages. Throws ConfigError, which names
/// the line, for what people write though mpirun does not read it.
std::vector<std::string> hosts_of(std::string_view hostfile, const std::string& path);

}  // namespace lockstep::jobs
