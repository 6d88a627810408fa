#include "base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/core_quota.h"

namespace lockstep {

int64_t host_memory_bytes(const std::filesystem::path& membership, const std::filesystem::path& root) {
  int64_t bytes = int64_t{::sysconf(_SC_PHYS_PAGES)} * int64_t{::sysconf(_SC_PAGESIZE)};
  // A group's limit holds for those within it. The file says "max" where there is none.
  for (const auto& group : control_groups(membership, root)) {
    std::ifstream file(group / "memory.max");
    int64_t limit = 0;
    if (file >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace lockstep
