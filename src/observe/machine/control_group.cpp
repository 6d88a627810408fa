#include "observe/machine/control_group.h"

#include <algorithm>
#include <string>

#include "base/core_quota.h"
#include "base/text.h"
#include "observe/machine/text_numbers.h"

namespace lockstep::observe {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) { return text_if_there(file.string()); }

/// Pages of files that nobody has touched for long are not needed.
std::optional<double> memory_used(const fs::path& group) {
  const auto all = number_in(trim(read(group / "memory.current")));
  if (!all) return std::nullopt;
  const double inactive = number_after(read(group / "memory.stat"), "inactive_file").value_or(0);
  return std::max(0.0, *all - inactive);
}

}  // namespace

GroupLimits group_limits(const fs::path& membership, const fs::path& root) {
  GroupLimits limits;
  for (const fs::path& group : control_groups(membership, root)) {
    if (const auto cores = quota_cores(group); cores && (!limits.cores || *cores < *limits.cores)) {
      limits.cores = cores;
      const auto microseconds = number_after(read(group / "cpu.stat"), "usage_usec");
      limits.processor_seconds = microseconds ? std::optional(*microseconds * 1e-6) : std::nullopt;
    }
    const auto memory = number_in(trim(read(group / "memory.max")));
    if (memory && (!limits.memory_bytes || *memory < *limits.memory_bytes)) {
      limits.memory_bytes = memory;
      limits.memory_used_bytes = memory_used(group);
    }
  }
  return limits;
}

}  // namespace lockstep::observe
