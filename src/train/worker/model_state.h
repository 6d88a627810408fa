#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_share.h"
#include "checkpoint/named_tensor.h"
#include "train/worker/worker.h"

namespace lockstep {

/// Parameters and statistics of a worker by name, as checkpoints and hashes see them. They lie in the device's memory:
/// for the host, shown() one by one.
std::vector<NamedTensor> parameter_tensors(const Worker& worker);
/// Optimizer state by name: "<parameter>.<slot>", for weights only; of each what this worker holds.
std::vector<NamedTensor> optimizer_tensors(const Worker& worker);
/// Of all optimizer state, wherever it lies, as checkpoints record it.
std::vector<TensorRecord> optimizer_records(const CompiledRun& compiled, const OptimizerOptions& optimizer);

/// The tensor with what it holds for the host to read (Worker::window), until the next one is shown.
NamedTensor shown(const Worker& worker, NamedTensor tensor);

/// What `rank` saves of a checkpoint: its tensors lie at `snapshot`, one after the other (CompiledRun::checkpoint_shares).
CheckpointShare checkpoint_share(const CompiledRun& compiled, const OptimizerOptions& optimizer, int rank,
                                 std::byte* snapshot);

uint64_t parameters_hash_of(const Worker& worker);
/// Parameters and optimizer state. COLLECTIVE where the workers hold different parts of the latter.
uint64_t state_hash_of(const Worker& worker, Communicator& world);
/// The hash of each tensor by name: to name the first that differs between two runs. COLLECTIVE likewise.
std::vector<std::pair<std::string, uint64_t>> tensor_hashes(const Worker& worker, Communicator& world);

}  // namespace lockstep
