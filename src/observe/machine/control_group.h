#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::observe {

/// What the control groups (version 2) of this process allow: containers often have less than their host.
struct GroupLimits {
  std::optional<double> cores;              ///< whose time it has; nothing: no limit
  std::optional<double> processor_seconds;  ///< used so far by the group that has this limit
  std::optional<double> memory_bytes;       ///< nothing: no limit
  std::optional<double> memory_used_bytes;  ///< by the group that has this limit, without what can be dropped
};
/// The tightest limits of the process's group and those around it. `membership`: a file such as
/// /proc/self/cgroup; `root`: a folder such as /sys/fs/cgroup. Never throws.
GroupLimits group_limits(const std::filesystem::path& membership, const std::filesystem::path& root);

}  // namespace lockstep::observe
