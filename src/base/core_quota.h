#pragma once

#include <filesystem>

namespace lockstep {

/// How many cores' time the control groups (version 2) of this process allow, rounded up; 0 if nothing
/// limits it, or nothing is known. Containers are often limited so, while they may run on all of a host's
/// cores. `membership` is a file as /proc/self/cgroup, `root` a folder as /sys/fs/cgroup. Throws nothing.
int core_quota(const std::filesystem::path& membership = "/proc/self/cgroup",
               const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace lockstep
