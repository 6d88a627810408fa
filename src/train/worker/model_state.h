#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_share.h"
#include "checkpoint/named_tensor.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Parameters and statistics by name, for checkpoints and hashes: the parts that this rank holds. They are in
/// the device's memory; shown() makes them readable for the host, one at a time.
std::vector<checkpoint::NamedTensor> parameter_tensors(const Worker& worker);
/// The records of all parameters, on whichever rank they are.
std::vector<checkpoint::TensorRecord> parameter_records(const compile::CompiledRun& compiled);
/// Optimizer state by name, "<parameter>.<slot>", only for weights: the parts that this worker holds.
std::vector<checkpoint::NamedTensor> optimizer_tensors(const Worker& worker);
/// The records of all optimizer state, on whichever rank it is.
std::vector<checkpoint::TensorRecord> optimizer_records(const compile::CompiledRun& compiled,
                                                        const config::RunConfig& config);

/// What rounding this worker's gradients has lost, by leaf (checkpoint::ResidualName); none without error
/// feedback.
std::vector<checkpoint::NamedTensor> residual_tensors(const Worker& worker);
/// The records of all residuals, on whichever rank they are.
std::vector<checkpoint::TensorRecord> residual_records(const compile::CompiledRun& compiled);

/// The tensor, readable for the host (Worker::window) until the next one is shown.
checkpoint::NamedTensor shown(const Worker& worker, checkpoint::NamedTensor tensor);

/// What `rank` saves of a checkpoint: its tensors are at `snapshot`, one after the other
/// (CompiledRun::checkpoint_shares).
checkpoint::CheckpointShare checkpoint_share(const compile::CompiledRun& compiled,
                                             const config::RunConfig& config, int rank, std::byte* snapshot);

/// Copies on the host of the parameters and optimizer state that a rank owns, for another worker that
/// continues with the same parts. No tensors of ranks that own nothing.
class OwnedState {
 public:
  explicit OwnedState(const Worker& worker);
  /// Throws InternalError if `worker` owns something else.
  void restore(Worker& worker) const;

 private:
  struct Part {
    checkpoint::NamedTensor tensor;
    std::vector<std::byte> contents;
  };
  std::vector<Part> parts_;
  std::map<std::string, int64_t> learning_since_;
};

/// COLLECTIVE: returns the values of a parameter, wherever they are, on every rank.
std::vector<float> gather_parameter(const Worker& worker, comm::Communicator& world, int parameter);
/// The elements of a parameter's moving average that this rank has. REQUIRES: averages are kept; the
/// parameter has state.
HeldParameter held_average(const Worker& worker, int parameter);
/// COLLECTIVE: returns a parameter's moving average, wherever it is, on every rank. REQUIRES: likewise.
std::vector<float> gather_average(const Worker& worker, comm::Communicator& world, int parameter);
/// COLLECTIVE: replaces a parameter, wherever it is, by the values that rank 0 passes. REQUIRES: rank 0
/// passes as many values as the parameter has.
void replace_parameter(Worker& worker, comm::Communicator& world, int parameter,
                       std::span<const float> values);

/// REQUIRES: holds_all().
uint64_t parameters_hash_of(const Worker& worker);
/// The hash of the rank's own replica; 0 on a server of whole models. COLLECTIVE if workers hold stages.
uint64_t parameters_hash_of(const Worker& worker, comm::Communicator& world);
/// The hash of parameters, optimizer state and residuals. COLLECTIVE if ranks hold different parts of them.
uint64_t state_hash_of(const Worker& worker, comm::Communicator& world);
/// The hash of each tensor by name, to find the first that differs between two runs. COLLECTIVE in the same
/// case.
std::vector<std::pair<std::string, uint64_t>> tensor_hashes(const Worker& worker, comm::Communicator& world);

}  // namespace lockstep::train
