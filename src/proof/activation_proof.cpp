#include "proof/activation_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "program/instruction_rules.h"
#include "program/regions.h"

namespace lockstep::proof {
namespace {

constexpr int kCount = -1;  ///< in place of an ordinal: how many there are

constexpr program::Role kActivationRoles[] = {program::Role::input, program::Role::output,
                                              program::Role::stash, program::Role::output_gradient};

bool is_activation(program::Role role) {
  return std::find(std::begin(kActivationRoles), std::end(kActivationRoles), role) !=
         std::end(kActivationRoles);
}

}  // namespace

void ActivationProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  if (!program::runs_segment(i.kind)) return;
  std::map<program::Role, int> ordinals;
  for (const program::Operand& operand : i.operands)
    if (program::reads(operand.access) && is_activation(operand.role))
      check_read(at, operand, ordinals[operand.role]++);
  check_has_a_gradient(at, ordinals[program::Role::output_gradient]);
  check_counts(at, ordinals);
  if (program::is_backward(i.kind)) note_computed(at);
}

void ActivationProof::check_read(const Place& at, const program::Operand& operand, int ordinal) {
  const std::string_view role = lockstep::program::name_of(operand.role);
  if (operand.range.size_bytes == 0) {
    if (nth(program(at).buffers, operand.range.buffer).size_bytes > 0)
      fail(at, "empty",
           fmt::format("it reads nothing of its {} {}; expected all of it", role,
                       proof::describe(program(at), operand.range)));
    return;
  }
  const auto pieces = read(at, operand);
  for (const Piece& piece : pieces)
    if (piece.expression == Expressions::kNothing) return;
  const Node& node = expressions().node(pieces.front().expression);
  std::string fault = fault_of(at, operand, pieces);
  if (fault.empty() && !is_as_before(at, operand.role, ordinal, node.signature))
    fault = fmt::format("{}, which other micro-batches or ranks do not use there", node.text);
  if (fault.empty()) return;
  const Expressions::Atom wanted = machine().atom(at, 0);
  fail(at, fmt::format("{}{}", role, ordinal),
       fmt::format("its {} {} should be of leaf {}, micro-batch {} within it, but is {}", role,
                   proof::describe(program(at), operand.range), wanted.leaf, wanted.micro_batch, fault));
}

std::string ActivationProof::fault_of(const Place& at, const program::Operand& operand,
                                      const std::vector<Piece>& pieces) {
  const Piece& first = pieces.front();
  const Node& node = expressions().node(first.expression);
  if (node.kind != Expressions::Kind::activation || node.atom != machine().atom(at, 0))
    return text(at, first.expression);
  if (pieces.size() > 1 || first.position != 0)
    return fmt::format("{} from byte {} on, then {}", node.text, first.position,
                       pieces.size() > 1 ? text(at, pieces[1].expression) : "no more");
  if (first.position_at(first.end) != node.extent)
    return fmt::format("{}, {} of its {} bytes; expected all", node.text, first.end,
                       node.extent * size_of(first.dtype) / 4);
  if (node.is_gradient) used_.merge(expressions().terms_of(node.signature));
  const bool wants_gradient = operand.role == program::Role::output_gradient;
  if (operand.role != program::Role::stash && node.is_gradient != wants_gradient)
    return fmt::format("{}, where {} belongs", node.text, wants_gradient ? "a gradient" : "an activation");
  return "";
}

bool ActivationProof::is_as_before(const Place& at, program::Role role, int ordinal, uint64_t found) {
  const program::Instruction& i = instruction(at);
  return producers_.try_emplace({i.kind, i.segment, i.leaves, role, ordinal}, found).first->second == found;
}

void ActivationProof::check_counts(const Place& at, std::map<program::Role, int>& counts) {
  const program::Instruction& i = instruction(at);
  for (const program::Role role : kActivationRoles) {
    const auto count = static_cast<uint64_t>(counts[role]);
    if (!is_as_before(at, role, kCount, count))
      fail(at, "count",
           fmt::format("it reads {} operands {}; other micro-batches or ranks read {}", count,
                       lockstep::program::name_of(role),
                       producers_.at({i.kind, i.segment, i.leaves, role, kCount})));
  }
}

/// A segment's gradients come from the loss: its own, or through the gradients of its outputs.
void ActivationProof::check_has_a_gradient(const Place& at, int output_gradients) {
  const program::Instruction& i = instruction(at);
  if (!program::is_backward(i.kind)) {
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::metrics) loss_segments_.insert(i.segment);
    return;
  }
  // The halves share what they need through a stash.
  if (i.kind == program::InstructionKind::backward_weight || output_gradients > 0 ||
      loss_segments_.contains(i.segment))
    return;
  fail(at, "no gradient",
       fmt::format("segment {} has no loss, so its backward needs the gradient of an output, and reads none",
                   i.segment));
}

void ActivationProof::note_computed(const Place& at) {
  int ordinal = 0;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role != program::Role::input_gradient) continue;
    const uint64_t signature = machine().signature_of(at, operand, ordinal++);
    if (!computed_.contains(signature))
      computed_.try_emplace(signature, at, proof::describe(program(at), operand.range));
  }
}

void ActivationProof::finish(int /*iterations*/) {
  for (const auto& [signature, made] : computed_)
    if (!used_.contains(signature))
      fail(made.first, "gradient in vain",
           fmt::format("no backward uses the gradient that it computes for an input ({})", made.second));
}

}  // namespace lockstep::proof
