#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace lockstep {

/// The number of cores whose time the control groups (version 2) of this process allow, rounded up; 0 if
/// there is no limit, or if it is unknown. Containers often have such a limit, although they may run on all
/// cores of a host. `membership`: a file such as /proc/self/cgroup; `root`: a folder such as /sys/fs/cgroup.
/// Never throws.
int core_quota(const std::filesystem::path& membership = "/proc/self/cgroup",
               const std::filesystem::path& root = "/sys/fs/cgroup");

/// The control groups (version 2) of this process, whose limits hold for it: the root first, its own one
/// last. Never throws.
std::vector<std::filesystem::path> control_groups(
    const std::filesystem::path& membership = "/proc/self/cgroup",
    const std::filesystem::path& root = "/sys/fs/cgroup");
/// The number of cores whose time a group allows, such as 2.5; nothing if it has no limit.
std::optional<double> quota_cores(const std::filesystem::path& group);

}  // namespace lockstep
