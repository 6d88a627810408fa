#include "train/model_state.h"

#include <algorithm>

#include "checkpoint/state_hash.h"

namespace lockstep {
namespace {

std::string state_name(const CompiledRun& compiled, int parameter, int slot) {
  return compiled.graph().parameters[static_cast<size_t>(parameter)].name + "." +
         std::string(state_slot_name(compiled.config().optimizer, slot));
}

std::vector<std::pair<std::string, uint64_t>> hashes_of(const Worker& worker, const std::vector<NamedTensor>& tensors) {
  std::vector<std::pair<std::string, uint64_t>> hashes;
  for (const auto& tensor : tensors) hashes.emplace_back(tensor.name, tensor_hash(shown(worker, tensor)));
  return hashes;
}

/// Ranks that hold tensors of a kind number their shards in order.
template <class Holds>
CheckpointShare::Shard shard_of(const CheckpointShares& shares, int rank, const Holds& holds) {
  CheckpointShare::Shard shard;
  for (size_t r = 0; r < shares.size(); ++r) {
    if (std::none_of(shares[r].begin(), shares[r].end(), holds)) continue;
    ++shard.count;
    if (static_cast<int>(r) == rank) shard.index = shard.count;
  }
  return shard;
}

}  // namespace

std::vector<NamedTensor> parameter_tensors(const Worker& worker) {
  std::vector<NamedTensor> tensors;
  const auto& parameters = worker.compiled().graph().parameters;
  for (size_t p = 0; p < parameters.size(); ++p)
    tensors.push_back({parameters[p].name, DType::float32, parameters[p].spec.shape, worker.parameter_data(static_cast<int>(p))});
  return tensors;
}

std::vector<NamedTensor> optimizer_tensors(const Worker& worker) {
  std::vector<NamedTensor> tensors;
  const auto& optimizer = worker.compiled().config().optimizer;
  const auto& parameters = worker.compiled().graph().parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].spec.role != ParameterRole::weight) continue;
    for (int slot = 0; slot < state_slots(optimizer); ++slot)
      tensors.push_back({state_name(worker.compiled(), static_cast<int>(p), slot), DType::float32,
                         parameters[p].spec.shape, worker.state_data(static_cast<int>(p), slot)});
  }
  return tensors;
}

CheckpointShare checkpoint_share(const CompiledRun& compiled, int rank, std::byte* snapshot) {
  const auto& shares = compiled.checkpoint_shares();
  CheckpointShare share;
  for (const auto& tensor : shares[static_cast<size_t>(rank)]) {
    const auto& parameter = compiled.graph().parameters[static_cast<size_t>(tensor.parameter)];
    if (tensor.slot < 0)
      share.parameters.push_back({parameter.name, DType::float32, parameter.spec.shape, snapshot});
    else
      share.state.push_back({state_name(compiled, tensor.parameter, tensor.slot), DType::float32, parameter.spec.shape, snapshot});
    snapshot += tensor.size_bytes;
  }
  share.model = shard_of(shares, rank, [](const SavedTensor& tensor) { return tensor.slot < 0; });
  share.optimizer = shard_of(shares, rank, [](const SavedTensor& tensor) { return tensor.slot >= 0; });
  return share;
}

NamedTensor shown(const Worker& worker, NamedTensor tensor) {
  tensor.data = worker.window().read(tensor.data, tensor.size_bytes());
  return tensor;
}

std::vector<std::pair<std::string, uint64_t>> tensor_hashes(const Worker& worker) {
  auto hashes = hashes_of(worker, parameter_tensors(worker));
  for (auto& hash : hashes_of(worker, optimizer_tensors(worker))) hashes.push_back(std::move(hash));
  return hashes;
}

uint64_t parameters_hash_of(const Worker& worker) { return fold_tensors(hashes_of(worker, parameter_tensors(worker))); }

uint64_t state_hash_of(const Worker& worker) { return fold_tensors(tensor_hashes(worker)); }

}  // namespace lockstep
