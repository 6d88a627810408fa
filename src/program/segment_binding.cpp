#include "program/segment_binding.h"

#include <fmt/format.h>

#include "base/index.h"
#include "lockstep/error.h"
#include "program/instruction_rules.h"
#include "program/step_scalars.h"

namespace lockstep::program {
namespace {

/// Whether the operands of a segment are as large as its kernels take them to be.
void check_room(const OperandBinding& operands, const ModelCode& code) {
  const Instruction& instruction = operands.instruction();
  if (instruction.segment < 0 || instruction.segment >= code.segment_count())
    throw InternalError(
        fmt::format("{}: the model has {} segments", operands.describe(), code.segment_count()));
  const auto& face = code.segment(instruction.segment);
  const auto activations = [&](Role role, const std::vector<int>& storages) {
    for (const int storage : storages)
      operands.exactly(role, storage, code.activation_bytes(storage), code.graph().value(storage).spec.dtype);
  };
  const bool forward = !is_backward(instruction.kind), again = instruction.kind == InstructionKind::recompute;
  activations(Role::input, face.inputs_of(instruction.kind));
  activations(Role::output, !forward ? std::vector<int>{} : again ? face.recompute_writes : face.writes);
  activations(Role::output_gradient, face.output_gradients_of(instruction.kind));
  activations(Role::input_gradient, face.input_gradients_of(instruction.kind));
  const bool in_halves = !forward && instruction.kind != InstructionKind::backward;
  operands.at_least(Role::stash, 0, face.stash_bytes);
  operands.at_least(Role::stash, kRepeatedStash, face.repeated_stash_bytes);
  operands.at_least(Role::stash, kWeightStash, in_halves ? face.weight_stash_bytes : 0);
  operands.at_least(Role::temporary, 0, face.temporary_bytes_of(instruction.kind));
  if (again && face.has_loss && face.repeated_stash_bytes == 0)
    throw InternalError(
        fmt::format("{}: a loss is computed once; keep what its segment makes", operands.describe()));
  operands.at_least(Role::metrics, forward && !again && face.has_loss ? code.metric_bytes() : 0);
  operands.at_least(Role::constants, kStepScalarsBytes);
}

/// REQUIRES: check_room. Refers to its arguments.
SegmentBindings bindings_of(const OperandBinding& operands, const ModelCode& code) {
  const auto either = [&operands](Role one, Role other, int storage) {
    std::byte* data = operands.pointer(one, storage);
    return data != nullptr ? data : operands.pointer(other, storage);
  };
  const auto place = [&operands](int parameter) -> const ParameterPlace& {
    return operands.program().parameter(parameter);
  };
  SegmentBindings bindings;
  bindings.activation = [=](int storage) { return either(Role::input, Role::output, storage); };
  bindings.gradient = [=](int storage) {
    return either(Role::output_gradient, Role::input_gradient, storage);
  };
  const auto whole = [&operands, place](int parameter) -> const ParameterPlace& {
    const ParameterPlace& of = place(parameter);
    if (!of.is_held_whole())
      throw InternalError(fmt::format("{} needs all of '{}', of which its rank holds {}", operands.describe(),
                                      of.name, tensor::describe(of.held)));
    return of;
  };
  bindings.parameter = [&operands, whole](int parameter) {
    return operands.in_operand(Role::parameters, DType::float32, whole(parameter).held_range());
  };
  bindings.narrow_parameter = [&operands, whole, narrow = code.graph().compute](int parameter) {
    return operands.in_operand(Role::parameters, narrow, whole(parameter).narrow_range(narrow));
  };
  bindings.parameter_gradient = [&operands, place](int parameter, int use) {
    return operands.in_bucket(nth(place(parameter).uses, use), place(parameter).size_bytes);
  };
  bindings.stash = operands.pointer(Role::stash, 0);
  bindings.weight_stash = operands.pointer(Role::stash, kWeightStash);
  bindings.repeated_stash = operands.pointer(Role::stash, kRepeatedStash);
  bindings.temporary = operands.pointer(Role::temporary, 0);
  bindings.metrics = reinterpret_cast<double*>(operands.pointer(Role::metrics, 0));
  // They stand first in what the buffer holds.
  bindings.constants = reinterpret_cast<const ops::StepConstants*>(operands.pointer(Role::constants, 0));
  bindings.accumulate = operands.instruction().accumulate;
  return bindings;
}

}  // namespace

std::vector<KernelCall> bind_segment(const OperandBinding& operands, const ModelCode& model) {
  const Instruction& instruction = operands.instruction();
  const ModelCode& code = model.of_replicas(instruction.leaves);
  check_room(operands, code);
  const SegmentBindings bindings = bindings_of(operands, code);
  if (is_backward(instruction.kind))
    return code.bind_backward(instruction.segment, bindings, instruction.kind);
  return instruction.kind == InstructionKind::recompute ? code.bind_recompute(instruction.segment, bindings)
                                                        : code.bind_forward(instruction.segment, bindings);
}

}  // namespace lockstep::program
