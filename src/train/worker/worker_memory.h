#pragma once

#include <cstdint>
#include <string>

#include "train/worker/worker.h"

namespace lockstep::train {

/// The host memory of a worker besides its device's memory: exactly what it will allocate, but for what is
/// read ahead, of which it is the most. Data sets, libraries and the program itself come on top.
struct HostMemory {
  int64_t checkpoint_copy_bytes =
      0;  ///< the copy that a checkpoint is written from; 0 on CPUs, where the device holds it
  int64_t staging_bytes = 0;  ///< for transfers between device and host: batches, records, one tensor
  int64_t served_bytes = 0;   ///< on GPUs, in sessions: served parameters, optimizer state, room for pushes
  /// Micro-batches (data.prefetch_depth), of training and of evaluation. GPUs copy them from where they were
  /// read: that part is `pinned_read_ahead_bytes`, of which a run that does not evaluate, or does nothing
  /// else, makes half; and with data.threads: AUTOMATIC what it turns out to need.
  int64_t read_ahead_bytes = 0;
  int64_t pinned_read_ahead_bytes = 0;
  int64_t averages_bytes = 0;  ///< while moving averages are evaluated: the parameters, and one average

  /// Device::allocate_host
  int64_t pinned_bytes() const {
    return checkpoint_copy_bytes + staging_bytes + served_bytes + pinned_read_ahead_bytes;
  }
  int64_t total_bytes() const {
    return pinned_bytes() + read_ahead_bytes - pinned_read_ahead_bytes + averages_bytes;
  }
};

struct WorkerMemory {
  program::MemoryPlan
      device;  ///< exactly what the device will allocate; Space::host is empty if it is not the device's
  HostMemory host;
};

/// The memory of the rank with these programs, on the kind of device that they were compiled for.
WorkerMemory plan_worker_memory(const compile::CompiledRun& run,
                                const compile::CompiledRun::RankPrograms& programs,
                                const config::RunConfig& config);

/// Bytes that a rank on this kind of device needs to exchange device memory with a group's other ranks by
/// messages between hosts; 0 if it does not do so.
int64_t staged_bytes(const program::Program& program, int group, device::DeviceKind device);

/// The table printed at start.
std::string describe(const WorkerMemory& memory);

/// The size of the largest parameter, or slot of optimizer state: what passes through Worker::window().
int64_t largest_tensor_bytes(const program::Program& program);

}  // namespace lockstep::train
