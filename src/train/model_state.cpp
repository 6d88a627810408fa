#include "train/model_state.h"

#include "checkpoint/state_hash.h"

namespace lockstep {

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
      tensors.push_back({parameters[p].name + "." + std::string(state_slot_name(optimizer, slot)), DType::float32,
                         parameters[p].spec.shape, worker.state_data(static_cast<int>(p), slot)});
  }
  return tensors;
}

std::vector<std::pair<std::string, uint64_t>> tensor_hashes(const Worker& worker) {
  std::vector<std::pair<std::string, uint64_t>> hashes;
  for (const auto& tensors : {parameter_tensors(worker), optimizer_tensors(worker)})
    for (const auto& tensor : tensors) hashes.emplace_back(tensor.name, tensor_hash(tensor));
  return hashes;
}

uint64_t parameters_hash_of(const Worker& worker) { return parameters_hash(parameter_tensors(worker)); }

uint64_t state_hash_of(const Worker& worker) { return fold_tensors(tensor_hashes(worker)); }

}  // namespace lockstep
