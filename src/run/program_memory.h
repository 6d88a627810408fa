#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "device/device.h"
#include "program/memory/memory_plan.h"
#include "program/program.h"

namespace lockstep {

/// The memory of one rank: one buffer per space, as large as the largest of its programs needs. Programs that share
/// it run one after the other; their parameters and optimizer state lie at the same places. Allocated once.
class ProgramMemory {
 public:
  ProgramMemory(Device& device, std::span<const MemoryPlan> plans);

  std::byte* at(const Program& program, const ByteRange& range) const {
    const auto& buffer = program.buffers[static_cast<size_t>(range.buffer)];
    return spaces_[static_cast<size_t>(buffer.space)].data() + buffer.offset + range.offset;
  }
  int64_t size_bytes() const;
  Device& device() const { return device_; }

 private:
  Device& device_;
  std::array<Buffer, kSpaceCount> spaces_;
};

/// Bytes of all spaces when the programs with these plans share their memory: what ProgramMemory allocates.
MemoryPlan combine_plans(std::span<const MemoryPlan> plans);

}  // namespace lockstep
