#include <algorithm>

#include "base/index.h"
#include "pixels/expand.h"
#include "run/bind.h"

namespace lockstep::run {

std::vector<Tensor> batch_fields(const model::Graph& graph, int64_t micro_batch,
                                 const std::optional<program::PackedInput>& packed) {
  std::vector<Tensor> fields;
  for (const int input : graph.inputs) {
    const auto& spec = graph.value(input).spec;
    if (packed && static_cast<size_t>(packed->input) == fields.size())
      fields.push_back({nullptr, Shape{micro_batch, packed->layout.sample_bytes()}, DType::uint8});
    else
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

Action bind_constants(const Binding& binding) {
  binding.at_least(program::Role::constants, static_cast<int64_t>(sizeof(StepScalars)));
  auto* constants = reinterpret_cast<StepScalars*>(binding.required(program::Role::constants, 0));
  auto& device = binding.context().device;
  if (device.shares_host_memory())
    return {.start = [constants](device::Stream&, const StepInputs& inputs, const auto&) {
      *constants = inputs.constants;
    }};
  // Those of the step before may be on their way still.
  struct Staged {
    device::Buffer memory;
    std::unique_ptr<device::Event> copied;
  };
  auto staged =
      std::make_shared<Staged>(Staged{device.allocate_host(sizeof(StepScalars)), device.create_event()});
  const device::Event* copied = staged->copied.get();
  return {.start =
              [constants, staged](device::Stream& stream, const StepInputs& inputs, const auto&) {
                *reinterpret_cast<StepScalars*>(staged->memory.data()) = inputs.constants;
                stream.copy(constants, staged->memory.data(), sizeof(StepScalars));
                stream.record(*staged->copied);
              },
          .staged = copied};
}

namespace {

/// On a device that does not share the host's memory: what is copied to where, and made of it there.
struct Transfer {
  std::vector<Tensor> host;              // their memory is known when the batch is there
  std::vector<std::byte*> destinations;  // null: this rank does not need the field
  std::optional<pixels::ExpandCall> expand;
};

Transfer make_transfer(const Binding& binding, const std::vector<Tensor>& fields) {
  const program::Instruction& instruction = binding.instruction();
  const auto& options = binding.context().code.of_replicas(instruction.leaves).options();
  Transfer transfer{.host = batch_fields(binding.context().graph, options.micro_batch, options.packed),
                    .destinations = {},
                    .expand = {}};
  for (size_t i = 0; i < fields.size(); ++i) {
    auto* destination = static_cast<std::byte*>(fields[i].data);
    if (destination != nullptr && options.packed && static_cast<size_t>(options.packed->input) == i) {
      binding.at_least(program::Role::temporary, 0, transfer.host[i].size_bytes());
      std::byte* samples = binding.required(program::Role::temporary, 0);
      transfer.expand = {.layout = options.packed->layout,
                         .samples = samples,
                         .count = options.micro_batch,
                         .images = destination,
                         .dtype = fields[i].dtype};
      destination = samples;
    }
    transfer.destinations.push_back(destination);
  }
  return transfer;
}

}  // namespace

Action bind_load(const Binding& binding, const std::shared_ptr<Staging>& staging) {
  const program::Instruction& instruction = binding.instruction();
  const ExecutionContext& context = binding.context();
  std::vector<Tensor> fields =
      batch_fields(context.graph, context.code.of_replicas(instruction.leaves).options().micro_batch);
  for (size_t i = 0; i < fields.size(); ++i)
    if (binding.find(program::Role::batch, static_cast<int>(i)) != nullptr)
      fields[i].data =
          binding.exactly(program::Role::batch, static_cast<int>(i), fields[i].size_bytes(), fields[i].dtype);
  const int64_t position = binding.context().first_samples.at(static_cast<size_t>(instruction.micro_batch));
  // Micro-batches of all sizes share it.
  if (stages(instruction, fields.size(), context.device.kind()) && !staging->copied)
    staging->make(context.device, batch_fields(context.graph, context.code.options().micro_batch,
                                               context.code.options().packed));
  BatchSource* batches = binding.context().batches;
  if (binding.context().device.shares_host_memory()) {
    for (size_t i = 0; i < fields.size(); ++i)
      if (fields[i].data == nullptr) fields[i].data = staging->at(i);
    return {.start = [fields = std::move(fields), staging, position, batches](
                         device::Stream&, const StepInputs& inputs, const auto&) {
      if (batches != nullptr) batches->load(inputs.iteration, position, fields);
    }};
  }
  const device::Event* copied = staging->copied.get();
  return {.start =
              [transfer = make_transfer(binding, fields), staging, position, batches](
                  device::Stream& stream, const StepInputs& inputs, const auto&) mutable {
                const bool exchanges = batches != nullptr && batches->exchanges();
                if (exchanges) batches->exchange(inputs.iteration, position, staging->memory);
                for (size_t i = 0; i < transfer.host.size(); ++i) transfer.host[i].data = staging->at(i);
                if (batches != nullptr && !exchanges)
                  batches->load(inputs.iteration, position, transfer.host);
                for (size_t i = 0; i < transfer.host.size(); ++i)
                  if (transfer.destinations[i] != nullptr)
                    stream.copy(transfer.destinations[i], transfer.host[i].data,
                                transfer.host[i].size_bytes());
                stream.record(*staging->copied);
                if (transfer.expand) pixels::expand_on_gpu(*transfer.expand, stream);
              },
          .staged = copied};
}

}  // namespace lockstep::run
