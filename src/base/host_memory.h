#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep {

/// Bytes of memory that this process can have: the host's, or less where a control group (version 2), such as
/// a container's, allows less. The parameters are for tests.
int64_t host_memory_bytes(const std::filesystem::path& membership = "/proc/self/cgroup",
                          const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace lockstep
