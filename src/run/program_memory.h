#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/index.h"
#include "device/device.h"
#include "program/memory/memory_plan.h"
#include "program/program.h"

namespace lockstep::run {

/// The memory of one rank: one buffer per space, as large as the largest of its programs needs. Programs that
/// share it run one after the other; their parameters and optimizer state are at the same places. Allocated
/// once.
class ProgramMemory {
 public:
  ProgramMemory(device::Device& device, std::span<const program::MemoryPlan> plans);

  std::byte* at(const program::Program& program, const program::ByteRange& range) const {
    const auto& buffer = program.buffer(range.buffer);
    return nth(spaces_, buffer.space).data() + buffer.offset + range.offset;
  }
  int64_t size_bytes() const;
  device::Device& device() const { return device_; }

 private:
  device::Device& device_;
  std::array<device::Buffer, program::kSpaceCount> spaces_;
};

}  // namespace lockstep::run
