#include "proof/flow_proof.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "program/instruction_rules.h"
#include "program/regions.h"

namespace lockstep::proof {
namespace {

bool is_value(program::Role role) {
  return role == program::Role::input || role == program::Role::output ||
         role == program::Role::output_gradient || role == program::Role::input_gradient;
}

bool is_gradient(program::Role role) {
  return role == program::Role::output_gradient || role == program::Role::input_gradient;
}

}  // namespace

FlowProof::FlowProof(SymbolicMachine& machine, MathematicsFindings& findings, const ModelFlow& flow)
    : Proof(machine, findings), flow_(flow) {
  check_parameters();
}

void FlowProof::check_parameters() {
  const auto& parameters = world().parameters();
  const auto fail = [this](const std::string& what) { findings().add(-1, -1, what, what); };
  if (parameters.size() != flow_.parameters.size())
    fail(fmt::format("the model has {} parameters, but programs have {}", flow_.parameters.size(),
                     parameters.size()));
  for (const ModelFlow::Parameter& wanted : flow_.parameters) {
    const auto found = std::ranges::find(parameters, wanted.name, &ModelParameter::name);
    const bool fits =
        found != parameters.end() && found->size_bytes == wanted.size_bytes &&
        found->frozen == wanted.frozen &&
        std::ranges::equal(found->uses, wanted.uses, {}, &program::ParameterPlace::Use::segment);
    if (!fits)
      fail(fmt::format(
          "programs do not have parameter '{}' with the size and the uses that the model gives it, in "
          "segments {}{}",
          wanted.name, fmt::join(wanted.uses, " and "), wanted.frozen ? ", frozen" : ""));
  }
}

void FlowProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  if (i.kind == program::InstructionKind::load) return note_written(at);
  if (!program::runs_segment(i.kind)) return;
  if (i.segment >= static_cast<int>(flow_.segments.size()))
    return fail(at, "segment", fmt::format("the model has {} segments", flow_.segments.size()));
  check_lists(at, nth(flow_.segments, i.segment));
  for (const program::Operand& operand : i.operands)
    if (is_value(operand.role) && program::reads(operand.access)) check_read(at, operand);
  note_written(at);
}

void FlowProof::check_lists(const Place& at, const SegmentFlow& flow) {
  switch (instruction(at).kind) {
    case program::InstructionKind::forward:
      check_list(at, program::Role::input, flow.inputs);
      return check_list(at, program::Role::output, flow.outputs);
    case program::InstructionKind::backward:
    case program::InstructionKind::backward_input:
      check_list(at, program::Role::output_gradient, flow.output_gradients);
      return check_list(at, program::Role::input_gradient, flow.input_gradients);
    case program::InstructionKind::backward_weight:
      return check_list(at, program::Role::output_gradient, flow.weight_gradients);
    default:  // a recomputation makes what the graph does not tell apart
      return;
  }
}

void FlowProof::check_list(const Place& at, program::Role role, std::span<const int> wanted) {
  std::vector<int> found;
  for (const program::Operand& operand : instruction(at).operands)
    if (operand.role == role) found.push_back(operand.index);
  std::ranges::sort(found);
  if (!std::ranges::equal(found, wanted))
    fail(at, fmt::format("{} of segment", lockstep::program::name_of(role)),
         fmt::format("by the model's graph its operands {} should be of {}, but they are of {}",
                     lockstep::program::name_of(role), text(wanted), text(found)));
}

void FlowProof::check_read(const Place& at, const program::Operand& operand) {
  const auto pieces = read(at, operand);
  if (pieces.empty() || pieces.front().expression == Expressions::kNothing) return;
  const Expressions::Node& node = expressions().node(pieces.front().expression);
  const auto found = made_.find(node.signature);
  const Made wanted{is_gradient(operand.role), operand.index};
  if (node.kind == Expressions::Kind::activation && found != made_.end() && found->second == wanted) return;
  fail(at, fmt::format("{} {} of graph", lockstep::program::name_of(operand.role), operand.index),
       fmt::format("by the model's graph it should read {} as {} {}, but there is {}", text(wanted),
                   lockstep::program::name_of(operand.role), operand.index,
                   Proof::text(at, pieces.front().expression)));
}

void FlowProof::note_written(const Place& at) {
  std::map<program::Role, int> ordinals;
  const auto note = [&](uint64_t signature, const Made& value, const program::Operand& operand) {
    const auto [known, is_new] = made_.emplace(signature, value);
    if (is_new || known->second == value) return;
    fail(at, fmt::format("{} {} of graph", lockstep::program::name_of(operand.role), operand.index),
         fmt::format("it writes {} where other ranks or micro-batches write {}", text(value),
                     text(known->second)));
  };
  for (const program::Operand& operand : instruction(at).operands) {
    if (!program::writes(operand.access)) continue;
    const int ordinal = ordinals[operand.role]++;
    if (operand.role == program::Role::batch)
      note(machine().signature_of(at, operand, operand.index), Made{false, nth(flow_.inputs, operand.index)},
           operand);
    else if (is_value(operand.role))
      note(machine().signature_of(at, operand, ordinal), Made{is_gradient(operand.role), operand.index},
           operand);
  }
}

std::string FlowProof::text(const Made& made) const {
  const std::string name = made.storage >= 0 && made.storage < static_cast<int>(flow_.names.size())
                               ? nth(flow_.names, made.storage)
                               : fmt::format("value {}", made.storage);
  return fmt::format("{}'{}'", made.is_gradient ? "the gradient of " : "", name);
}

std::string FlowProof::text(std::span<const int> storages) const {
  std::vector<std::string> names;
  for (const int storage : storages) names.push_back(text(Made{false, storage}));
  return names.empty() ? "nothing" : join(names, ", ");
}

}  // namespace lockstep::proof
