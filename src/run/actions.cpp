#include "run/actions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/error.h"
#include "run/bind.h"

namespace lockstep::run {
namespace {

void require_runnable(const program::Program& program) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (!is_runnable(program.instructions[i].kind))
      throw InternalError(fmt::format("{} cannot be run: a session runs it, and no executor",
                                      program::describe(program, static_cast<int>(i))));
}

/// By parity of the micro-batch.
using Stagings = std::array<std::shared_ptr<Staging>, 2>;

Action bind(const Binding& binding, const Stagings& stagings) {
  switch (binding.instruction().kind) {
    case program::InstructionKind::constants:
      return bind_constants(binding);
    case program::InstructionKind::load:
      return bind_load(binding, stagings[staging_of(binding.instruction())]);
    case program::InstructionKind::forward:
    case program::InstructionKind::recompute:
    case program::InstructionKind::backward:
    case program::InstructionKind::backward_input:
    case program::InstructionKind::backward_weight:
      return bind_segment(binding);
    case program::InstructionKind::add:
      return bind_add(binding);
    case program::InstructionKind::cast:
      return bind_cast(binding);
    case program::InstructionKind::exchange:
      return bind_exchange(binding);
    case program::InstructionKind::all_reduce:
      return bind_all_reduce(binding);
    case program::InstructionKind::ring_reduce_scatter:
    case program::InstructionKind::ring_all_gather:
      return bind_ring(binding);
    case program::InstructionKind::agree:
      return bind_agree(binding);
    case program::InstructionKind::norm:
      return bind_norm(binding);
    case program::InstructionKind::propose:
      return bind_propose(binding);
    case program::InstructionKind::ratios:
      return bind_ratios(binding);
    case program::InstructionKind::digest:
      return bind_digest(binding);
    case program::InstructionKind::update:
      return bind_update(binding);
    case program::InstructionKind::snapshot:
      return bind_snapshot(binding);
    case program::InstructionKind::pull:
      return bind_pull(binding);
    case program::InstructionKind::push:
      return bind_push(binding);
    default:
      break;  // require_runnable() has refused it
  }
  throw InternalError(fmt::format("{} has no action", binding.describe()));
}

}  // namespace

bool is_runnable(program::InstructionKind kind) { return kind != program::InstructionKind::serve; }

std::vector<Action> make_actions(const program::Program& program, const ExecutionContext& context,
                                 const KernelObserver* observer) {
  require_runnable(program);
  const std::shared_ptr<StepKernels> kernels =
      make_step_kernels(context.device.kind(), context.update_threads, context.sum_order);
  const Stagings stagings = {std::make_shared<Staging>(), std::make_shared<Staging>()};
  std::vector<Action> actions;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    actions.push_back(bind({program, context, observer, kernels, static_cast<int>(i)}, stagings));
  return actions;
}

int64_t staged_bytes(const program::Program& program, int group) {
  int64_t most = 0;
  for (const auto& instruction : program.instructions) {
    if (instruction.group != group) continue;
    std::vector<int64_t> transfers;
    for (const auto& operand : instruction.operands) {
      if (operand.role == program::Role::send || operand.role == program::Role::receive)
        transfers.push_back(operand.range.size_bytes);
      if (operand.role == program::Role::data) most = std::max(most, operand.range.size_bytes);
    }
    most = std::max(most, comm::staging_of_exchange(transfers));
  }
  return comm::staging_of(most);
}

int64_t staging_bytes(const program::Program& program, const model::Graph& graph, int64_t micro_batch,
                      device::DeviceKind device, const std::optional<program::PackedInput>& packed) {
  int64_t size_bytes = 0, served_scratch = 0;
  bool staged[2] = {};
  for (const auto& instruction : program.instructions) {
    if (instruction.kind == program::InstructionKind::load &&
        stages(instruction, graph.inputs.size(), device))
      staged[staging_of(instruction)] = true;
    if (instruction.kind == program::InstructionKind::constants && device == device::DeviceKind::cuda)
      size_bytes += static_cast<int64_t>(sizeof(StepScalars));
    if (instruction.kind == program::InstructionKind::agree)
      size_bytes += static_cast<int64_t>(sizeof(program::AgreeRecord));
    if (instruction.kind == program::InstructionKind::snapshot) size_bytes += program::kMetricBytes;
    if (device == device::DeviceKind::cuda) size_bytes += session_staging_bytes(instruction);
    if (instruction.kind == program::InstructionKind::serve)
      served_scratch = std::max(served_scratch, served_scratch_bytes(program, instruction));
  }
  size_bytes += served_scratch;
  size_bytes += (staged[0] + staged[1]) * Staging::size_bytes_for(batch_fields(graph, micro_batch, packed));
  return size_bytes;
}

}  // namespace lockstep::run
