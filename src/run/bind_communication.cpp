#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "lockstep/error.h"
#include "run/bind.h"
#include "run/ring_action.h"

namespace lockstep::run {

Action bind_exchange(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  std::vector<comm::Transfer> transfers;
  for (const auto& operand : instruction.operands)
    transfers.push_back({operand.role == program::Role::send ? comm::Transfer::Direction::send
                                                             : comm::Transfer::Direction::receive,
                         operand.peer, binding.at(operand), operand.range.size_bytes});
  comm::Communicator* comm = binding.communicator();
  return {.communicate = [transfers = std::move(transfers), comm](
                             device::Stream& stream,
                             const StepInputs&) { return comm->exchange(transfers, stream); },
          .communicator = comm};
}

Action bind_all_reduce(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  const program::Operand* data = binding.required_operand(program::Role::data);
  void* at_data = binding.at(*data);
  const DType dtype = data->dtype;
  const int64_t count = data->range.size_bytes / size_of(dtype);
  comm::Communicator* comm = binding.communicator();
  if (instruction.ordered && comm->size() > 1 && !comm->sums_along_tree())
    throw InternalError(
        fmt::format("{} needs a sum along the canonical tree, but its communicator ({}) sums in another "
                    "order; give its group one through shared memory",
                    binding.describe(), comm->backend()));
  return {.communicate =
              [=](device::Stream& stream, const StepInputs&) {
                return comm->all_reduce(at_data, count, dtype, comm::ReduceOp::sum, stream);
              },
          .communicator = comm};
}

Action bind_ring(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  const program::Operand* data = binding.required_operand(program::Role::data);
  comm::Communicator* comm = binding.communicator();
  const bool sums = instruction.kind == program::InstructionKind::ring_reduce_scatter;
  const std::string fault =
      fault_of(instruction.blocks, data->range.size_bytes, comm->size(), sums ? size_of(data->dtype) : 1);
  if (!fault.empty()) throw InternalError(fmt::format("{}: {}", binding.describe(), fault));
  if (sums) binding.at_least(program::Role::temporary, largest_block_bytes(instruction.blocks, comm->size()));
  return make_ring_action({.pass = sums ? program::RingPass::reduce_scatter : program::RingPass::all_gather,
                           .blocks = instruction.blocks,
                           .data = binding.at(*data),
                           .scratch = binding.pointer(program::Role::temporary, 0),
                           .dtype = data->dtype,
                           .communicator = comm},
                          binding.kernels());
}

Action bind_agree(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  const auto& members = binding.program().group(instruction.group).members;
  const program::Operand* metrics = binding.find(program::Role::metrics);
  const int64_t metric_bytes = metrics == nullptr ? 0 : metrics->range.size_bytes;
  const std::byte* own_metrics = metrics == nullptr ? nullptr : binding.at(*metrics);
  const auto replicas = static_cast<int32_t>(metric_bytes / program::kMetricBytes);
  const program::Operand* data = binding.required_operand(program::Role::data);
  const int64_t block_bytes = data->range.size_bytes / static_cast<int64_t>(members.size());
  ensure(static_cast<int64_t>(sizeof(program::AgreeRecord)) + metric_bytes <= block_bytes,
         "a record of an agreement has room for all metrics");
  const AgreementCall call{
      .records = binding.at(*data),
      .block_bytes = block_bytes,
      .ranks = static_cast<int>(members.size()),
      .compared =
          binding.program().replicas > 0 ? binding.program().replicas : static_cast<int>(members.size()),
      .verdict = reinterpret_cast<program::Verdict*>(binding.required(program::Role::verdict, 0))};
  comm::Communicator* comm = binding.communicator();
  std::byte* records = binding.at(*data);
  std::byte* own = records + block_bytes * comm->rank();
  auto record =
      std::make_shared<device::Buffer>(binding.context().device.allocate_host(sizeof(program::AgreeRecord)));
  return {.communicate =
              [=](device::Stream& stream, const StepInputs& inputs) {
                *reinterpret_cast<program::AgreeRecord*>(record->data()) = {
                    .stop_requested = static_cast<float>(inputs.stop_requested),
                    .replicas = replicas,
                    .state_hash = inputs.state_hash};
                stream.copy(own, record->data(), sizeof(program::AgreeRecord));
                stream.copy(own + sizeof(program::AgreeRecord), own_metrics, metric_bytes);
                return comm->all_gather(records, call.block_bytes, stream);
              },
          .communicator = comm,
          .finish = [call,
                     kernels = binding.kernels()](device::Stream& stream) { kernels->agree(call, stream); }};
}

}  // namespace lockstep::run
