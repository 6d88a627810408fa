#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "device/device.h"
#include "step/memory_plan.h"
#include "step/program.h"

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

  /// Where the host reads and writes a range of parameters or optimizer state: at() where it shares the device's memory,
  /// otherwise in a copy of both spaces, made when it is first asked for. pull() copies from the device, push() to it.
  std::byte* host_at(const Program& program, const ByteRange& range);
  void pull();
  void push();

 private:
  static constexpr std::array kMirrored = {Space::parameters, Space::optimizer};
  void make_mirror();

  Device& device_;
  std::array<Buffer, kSpaceCount> spaces_;
  std::array<Buffer, kMirrored.size()> mirror_;   // in the host's memory
};

/// Bytes of all spaces when the programs with these plans share their memory: what the start-up table prints and what
/// the device allocates.
MemoryPlan combine_plans(std::span<const MemoryPlan> plans);

}  // namespace lockstep
