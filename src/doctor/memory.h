#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

/// Bytes.
struct MemoryFacts {
  int64_t total = 0, available = 0;
  int64_t group_limit = 0, group_used = 0;  ///< of the control group; 0: no limit
  int64_t address_limit = 0;                ///< ulimit -v; 0: none
};
Finding judge_memory(const MemoryFacts& facts);

/// The lowest limit of this process's control groups (version 2, or else 1), and the memory that this group
/// uses. `membership` and `root`: as in core_quota(). Zeros if there is no limit.
struct GroupMemory {
  int64_t limit = 0, used = 0;
};
GroupMemory group_memory(const std::filesystem::path& membership = "/proc/self/cgroup",
                         const std::filesystem::path& root = "/sys/fs/cgroup");

struct SharedMemoryFacts {
  std::string problem;  ///< why no file can be made there; empty: one could
  int64_t total = 0, free = 0;
  int cores = 1;  ///< as many ranks may be started here
};
Finding judge_shared_memory(const SharedMemoryFacts& facts);

std::vector<Finding> look_at_memory(const Request& request);
std::vector<Finding> look_at_shared_memory(const Request& request);

}  // namespace lockstep::doctor
