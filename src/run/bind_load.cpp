#include <algorithm>

#include "base/index.h"
#include "run/bind.h"

namespace lockstep::run {

std::vector<Tensor> batch_fields(const model::Graph& graph, int64_t micro_batch) {
  std::vector<Tensor> fields;
  for (const int input : graph.inputs) {
    const auto& spec = graph.value(input).spec;
    fields.push_back({nullptr, spec.shape.batched(micro_batch), spec.dtype});
  }
  return fields;
}

size_t staging_of(const program::Instruction& load) {
  return static_cast<size_t>(std::max(load.micro_batch, 0) % 2);
}

bool stages(const program::Instruction& load, size_t fields, device::DeviceKind device) {
  const auto wanted = std::ranges::count(load.operands, program::Role::batch, &program::Operand::role);
  return device == device::DeviceKind::cuda || (wanted > 0 && static_cast<size_t>(wanted) < fields);
}

Action bind_load(const Binding& binding, const std::shared_ptr<Staging>& staging) {
  const program::Instruction& instruction = binding.instruction();
  std::vector<Tensor> fields =
      batch_fields(binding.context().graph, binding.context().code.options().micro_batch);
  const bool wants_batch = binding.find(program::Role::batch) != nullptr;
  for (size_t i = 0; i < fields.size(); ++i)
    if (binding.find(program::Role::batch, static_cast<int>(i)) != nullptr)
      fields[i].data =
          binding.exactly(program::Role::batch, static_cast<int>(i), fields[i].size_bytes(), fields[i].dtype);
  auto* constants = reinterpret_cast<StepScalars*>(binding.pointer(program::Role::constants, 0));
  if (constants != nullptr)
    binding.at_least(program::Role::constants, static_cast<int64_t>(sizeof(StepScalars)));
  const int64_t position =
      wants_batch ? binding.context().first_samples.at(static_cast<size_t>(instruction.micro_batch)) : 0;
  if (stages(instruction, fields.size(), binding.context().device.kind()) && staging->fields.empty())
    staging->make(binding.context().device, fields);
  BatchSource* batches = wants_batch ? binding.context().batches : nullptr;
  if (binding.context().device.shares_host_memory()) {
    for (size_t i = 0; i < fields.size(); ++i)
      if (fields[i].data == nullptr && wants_batch) fields[i].data = staging->fields[i].data;
    return {.start = [fields = std::move(fields), staging, constants, position, batches](
                         device::Stream&, const StepInputs& inputs, const auto&) {
      if (constants != nullptr) *constants = inputs.constants;
      if (batches != nullptr) batches->load(inputs.iteration, position, fields);
    }};
  }
  return {.start = [fields = std::move(fields), staging, constants, position, batches](
                       device::Stream& stream, const StepInputs& inputs, const auto&) {
    staging->copied->synchronize();
    std::vector<Tensor>& host = staging->fields;
    if (batches != nullptr) batches->load(inputs.iteration, position, host);
    for (size_t i = 0; i < host.size(); ++i)
      if (fields[i].data != nullptr) stream.copy(fields[i].data, host[i].data, host[i].size_bytes());
    if (constants != nullptr) {
      *staging->constants = inputs.constants;
      stream.copy(constants, staging->constants, sizeof *constants);
    }
    stream.record(*staging->copied);
  }};
}

}  // namespace lockstep::run
