#pragma once

#include <filesystem>

namespace lockstep {

/// The number of cores whose time the control groups (version 2) of this process allow, rounded up; 0 if
/// there is no limit, or if it is unknown. Containers often have such a limit, although they may run on all
/// cores of a host. `membership`: a file such as /proc/self/cgroup; `root`: a folder such as /sys/fs/cgroup.
/// Never throws.
int core_quota(const std::filesystem::path& membership = "/proc/self/cgroup",
               const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace lockstep
