#include "run/program_memory.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"

namespace lockstep::run {

ProgramMemory::ProgramMemory(device::Device& device, std::span<const program::MemoryPlan> plans)
    : device_(device) {
  const program::MemoryPlan all = program::combine_plans(plans);
  for (size_t space = 0; space < spaces_.size(); ++space) {
    const int64_t size_bytes = all.space_bytes[space];
    spaces_[space] = space == static_cast<size_t>(program::Space::host) && !device.shares_host_memory()
                         ? device.allocate_host(size_bytes)
                         : device.allocate(size_bytes);
  }
}

int64_t ProgramMemory::size_bytes() const {
  return std::accumulate(spaces_.begin(), spaces_.end(), int64_t{0},
                         [](int64_t sum, const device::Buffer& buffer) { return sum + buffer.size_bytes(); });
}

}  // namespace lockstep::run
