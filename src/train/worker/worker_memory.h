#pragma once

#include <cstdint>
#include <string>

#include "train/worker/worker.h"

namespace lockstep::train {

/// What a worker takes of its host's memory beside its device's: exactly what it will allocate. Data sets,
/// libraries and the program itself come on top.
struct HostMemory {
  int64_t checkpoint_copy_bytes =
      0;                      ///< what a checkpoint is written from; 0 where the device holds it: on CPUs
  int64_t staging_bytes = 0;  ///< what passes between device and host: batches, records, a tensor to look at
  int64_t served_bytes =
      0;  ///< on GPUs, in sessions: what a server serves, optimizer state, places for pushes
  int64_t read_ahead_bytes = 0;  ///< micro-batches (data.prefetch_depth), of training and of evaluation

  /// Device::allocate_host
  int64_t pinned_bytes() const { return checkpoint_copy_bytes + staging_bytes + served_bytes; }
  int64_t total_bytes() const { return pinned_bytes() + read_ahead_bytes; }
};

struct WorkerMemory {
  program::MemoryPlan
      device;  ///< exactly what the device will allocate; Space::host is empty where it is not the device's
  HostMemory host;
};

/// Of the rank whose programs these are, on the kind of device that they were compiled for.
WorkerMemory plan_worker_memory(const compile::CompiledRun& run,
                                const compile::CompiledRun::RankPrograms& programs,
                                const data::DataOptions& data);

/// What a rank on this kind of device takes to exchange memory of it with a group's other ranks by messages
/// between hosts; 0 where it does not.
int64_t staged_bytes(const program::Program& program, int group, device::DeviceKind device);

/// The table printed at start.
std::string describe(const WorkerMemory& memory);

/// The most that a parameter takes, or a slot of its optimizer state: what passes through Worker::window().
int64_t largest_tensor_bytes(const program::Program& program);

}  // namespace lockstep::train
