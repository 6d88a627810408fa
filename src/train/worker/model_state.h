#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_share.h"
#include "checkpoint/named_tensor.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Parameters and statistics by name, as checkpoints and hashes see them; of each what this rank holds. They
/// lie in the device's memory: for the host, shown() one by one.
std::vector<checkpoint::NamedTensor> parameter_tensors(const Worker& worker);
/// Of all parameters, wherever they lie.
std::vector<checkpoint::TensorRecord> parameter_records(const compile::CompiledRun& compiled);
/// Optimizer state by name: "<parameter>.<slot>", for weights only; of each what this worker holds.
std::vector<checkpoint::NamedTensor> optimizer_tensors(const Worker& worker);
/// Of all optimizer state, wherever it lies, as checkpoints record it.
std::vector<checkpoint::TensorRecord> optimizer_records(const compile::CompiledRun& compiled,
                                                        const optim::OptimizerOptions& optimizer);

/// The tensor with what it holds for the host to read (Worker::window), until the next one is shown.
checkpoint::NamedTensor shown(const Worker& worker, checkpoint::NamedTensor tensor);

/// What `rank` saves of a checkpoint: its tensors lie at `snapshot`, one after the other
/// (CompiledRun::checkpoint_shares).
checkpoint::CheckpointShare checkpoint_share(const compile::CompiledRun& compiled,
                                             const optim::OptimizerOptions& optimizer, int rank,
                                             std::byte* snapshot);

/// Copies, on the host, of the parameters and optimizer state of a rank that owns some of them, for another
/// worker of the same parts to go on with; empty for other ranks.
class OwnedState {
 public:
  explicit OwnedState(const Worker& worker);
  /// Throws InternalError where `worker` owns something else.
  void restore(Worker& worker) const;

 private:
  struct Part {
    checkpoint::NamedTensor tensor;
    std::vector<std::byte> contents;
  };
  std::vector<Part> parts_;
};

/// COLLECTIVE: the values of a parameter, wherever they lie, on every rank.
std::vector<float> gather_parameter(const Worker& worker, comm::Communicator& world, int parameter);
/// COLLECTIVE: puts the values that rank 0 passes in place of a parameter, wherever it lies. REQUIRES: rank 0
/// passes as many as it has.
void replace_parameter(Worker& worker, comm::Communicator& world, int parameter,
                       std::span<const float> values);

/// REQUIRES: holds_all().
uint64_t parameters_hash_of(const Worker& worker);
/// COLLECTIVE where workers hold stages: of the rank's own replica; 0 on a server of whole models.
uint64_t parameters_hash_of(const Worker& worker, comm::Communicator& world);
/// Parameters and optimizer state. COLLECTIVE where ranks hold different parts of them.
uint64_t state_hash_of(const Worker& worker, comm::Communicator& world);
/// The hash of each tensor by name: to name the first that differs between two runs. COLLECTIVE likewise.
std::vector<std::pair<std::string, uint64_t>> tensor_hashes(const Worker& worker, comm::Communicator& world);

}  // namespace lockstep::train
