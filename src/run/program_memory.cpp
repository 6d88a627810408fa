#include "run/program_memory.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"

namespace lockstep::run {

program::MemoryPlan combine_plans(std::span<const program::MemoryPlan> plans) {
  program::MemoryPlan all;
  for (const auto& plan : plans) {
    // The arena's larger user decides how its bytes are shown, so that categories still add up.
    const auto arena = static_cast<size_t>(program::Space::arena);
    const bool larger_arena = plan.space_bytes[arena] > all.space_bytes[arena];
    for (const auto category : {program::Category::activations, program::Category::workspace})
      if (const auto c = static_cast<size_t>(category); larger_arena)
        all.category_bytes[c] = plan.category_bytes[c];
    for (const auto category :
         {program::Category::parameters, program::Category::gradients, program::Category::optimizer_state})
      if (const auto c = static_cast<size_t>(category); true)
        all.category_bytes[c] = std::max(all.category_bytes[c], plan.category_bytes[c]);
    for (size_t space = 0; space < all.space_bytes.size(); ++space)
      all.space_bytes[space] = std::max(all.space_bytes[space], plan.space_bytes[space]);
  }
  nth(all.category_bytes, program::Category::staging) = nth(all.space_bytes, program::Space::staging) +
                                                        nth(all.space_bytes, program::Space::scalars) +
                                                        nth(all.space_bytes, program::Space::host);
  all.total_bytes = std::accumulate(all.space_bytes.begin(), all.space_bytes.end(), int64_t{0});
  return all;
}

ProgramMemory::ProgramMemory(device::Device& device, std::span<const program::MemoryPlan> plans)
    : device_(device) {
  const program::MemoryPlan all = combine_plans(plans);
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
