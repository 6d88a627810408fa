#include <fmt/format.h>

#include "base/index.h"
#include "lockstep/error.h"
#include "program/instruction_rules.h"
#include "run/bind.h"

namespace lockstep::run {
namespace {

/// The index of what the first half of backward keeps for the second; 0 is what forward keeps.
constexpr int kWeightStash = 1;
/// That of what is cheap to repeat.
constexpr int kRepeatedStash = 2;

/// Whether the operands of a segment are as large as its kernels take them to be.
void check_room(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  if (instruction.segment < 0 || instruction.segment >= binding.context().code.segment_count())
    throw InternalError(fmt::format("{}: the model has {} segments", binding.describe(),
                                    binding.context().code.segment_count()));
  const auto& face = binding.context().code.segment(instruction.segment);
  const auto activations = [&](program::Role role, const std::vector<int>& storages) {
    for (const int storage : storages)
      binding.exactly(role, storage, binding.context().code.activation_bytes(storage),
                      binding.context().graph.value(storage).spec.dtype);
  };
  const bool forward = !program::is_backward(instruction.kind);
  activations(program::Role::input, face.inputs_of(instruction.kind));
  const bool again = instruction.kind == program::InstructionKind::recompute;
  activations(program::Role::output, !forward ? std::vector<int>{}
                                     : again  ? face.recompute_writes
                                              : face.writes);
  activations(program::Role::output_gradient, face.output_gradients_of(instruction.kind));
  activations(program::Role::input_gradient, face.input_gradients_of(instruction.kind));
  const bool in_halves = !forward && instruction.kind != program::InstructionKind::backward;
  binding.at_least(program::Role::stash, 0, face.stash_bytes);
  binding.at_least(program::Role::stash, kRepeatedStash, face.repeated_stash_bytes);
  binding.at_least(program::Role::stash, kWeightStash, in_halves ? face.weight_stash_bytes : 0);
  binding.at_least(program::Role::temporary, 0, face.temporary_bytes_of(instruction.kind));
  if (again && face.has_loss && face.repeated_stash_bytes == 0)
    throw InternalError(
        fmt::format("{}: a loss is computed once; keep what its segment makes", binding.describe()));
  binding.at_least(program::Role::metrics, forward && !again && face.has_loss ? kMetricBytes : 0);
  binding.at_least(program::Role::constants, static_cast<int64_t>(sizeof(StepScalars)));
}

}  // namespace

Action bind_segment(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  check_room(binding);
  const auto& graph = binding.context().graph;
  program::SegmentBindings bindings;
  bindings.activation = [&](int storage) {
    std::byte* data = binding.pointer(program::Role::input, storage);
    return data != nullptr ? data : binding.pointer(program::Role::output, storage);
  };
  bindings.gradient = [&](int storage) {
    std::byte* data = binding.pointer(program::Role::output_gradient, storage);
    return data != nullptr ? data : binding.pointer(program::Role::input_gradient, storage);
  };
  bindings.parameter = [&](int parameter) {
    const auto& place = binding.program().parameter(parameter);
    return binding.in_operand(program::Role::parameters, DType::float32,
                              {place.buffer, place.offset, place.size_bytes});
  };
  bindings.narrow_parameter = [&](int parameter) {
    const auto& place = binding.program().parameter(parameter);
    return binding.in_operand(
        program::Role::parameters, graph.compute,
        {place.narrow_buffer, place.narrow_offset, place.size_bytes / 4 * size_of(graph.compute)});
  };
  bindings.parameter_gradient = [&](int parameter, int use) {
    const auto& place = binding.program().parameter(parameter);
    return binding.in_bucket(nth(place.uses, use), place.size_bytes);
  };
  bindings.stash = binding.pointer(program::Role::stash, 0);
  bindings.weight_stash = binding.pointer(program::Role::stash, kWeightStash);
  bindings.repeated_stash = binding.pointer(program::Role::stash, kRepeatedStash);
  bindings.temporary = binding.pointer(program::Role::temporary, 0);
  bindings.metrics = reinterpret_cast<double*>(binding.pointer(program::Role::metrics, 0));
  if (const auto* constants =
          reinterpret_cast<const StepScalars*>(binding.pointer(program::Role::constants, 0));
      constants != nullptr)
    bindings.constants = &constants->kernels;
  bindings.accumulate = instruction.accumulate;

  const program::ModelCode& code = binding.context().code;
  auto calls = program::is_backward(instruction.kind)
                   ? code.bind_backward(instruction.segment, bindings, instruction.kind)
               : instruction.kind == program::InstructionKind::recompute
                   ? code.bind_recompute(instruction.segment, bindings)
                   : code.bind_forward(instruction.segment, bindings);
  const int64_t first_sample = nth(binding.context().first_samples, instruction.micro_batch);
  return {.start = [calls = std::move(calls), first_sample, observer = binding.observer(),
                    index = binding.index()](device::Stream& stream, const StepInputs&,
                                             const std::function<void()>& between) {
    for (const auto& call : calls) {
      observe(observer, stream, index, &call, [&] { call.run(stream, first_sample); });
      between();
    }
  }};
}

}  // namespace lockstep::run
