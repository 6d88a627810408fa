#include <fmt/format.h>

#include "base/index.h"
#include "program/instruction_rules.h"
#include "program/regions.h"
#include "proof/mathematics.h"

namespace lockstep::proof {

void Mathematics::check_activation(const Place& at, const program::Operand& operand, int ordinal) {
  const program::Instruction& i = instruction(at);
  const Atom wanted = atom(at, 0);
  if (operand.range.size_bytes == 0) {
    if (nth(program(at).buffers, operand.range.buffer).size_bytes > 0)
      fail(
          at, "empty",
          fmt::format("it reads nothing of its {} {}; expected all of it",
                      lockstep::program::name_of(operand.role), proof::describe(program(at), operand.range)));
    return;
  }
  const auto pieces = read(at, operand);
  const std::string_view role = lockstep::program::name_of(operand.role);
  const auto wrong = [&](const std::string& found) {
    fail(at, fmt::format("{}{}", role, ordinal),
         fmt::format("its {} {} should be of leaf {}, micro-batch {} within it, and is {}", role,
                     proof::describe(program(at), operand.range), wanted.leaf, wanted.micro_batch, found));
  };
  const Piece& first = pieces.front();
  for (const Piece& piece : pieces)
    if (piece.expression == Expressions::kNothing) return;  // the data check's business
  const auto& node = expressions_.node(first.expression);
  if (node.kind != Expressions::Kind::activation || node.atom != wanted)
    return wrong(expressions_.text(first.expression, at.iteration, 1));
  if (pieces.size() > 1 || first.position != 0)
    return wrong(fmt::format(
        "{} from byte {} on, then {}", node.text, first.position,
        pieces.size() > 1 ? expressions_.text(pieces[1].expression, at.iteration, 1) : "no more"));
  if (first.position_at(first.end) != node.extent)
    return wrong(fmt::format("{}, {} of its {} bytes; expected all", node.text, first.end,
                             node.extent * size_of(first.dtype) / 4));
  const bool wants_gradient = operand.role == program::Role::output_gradient;
  if (node.is_gradient) note_gradient_use(node.signature);
  if (operand.role != program::Role::stash && node.is_gradient != wants_gradient)
    return wrong(
        fmt::format("{}, where {} belongs", node.text, wants_gradient ? "a gradient" : "an activation"));
  const auto [known, is_new] = producers_.emplace(
      std::tuple(static_cast<int>(i.kind), i.segment, static_cast<int>(operand.role), ordinal),
      node.signature);
  if (!is_new && known->second != node.signature)
    wrong(fmt::format("{}, which other micro-batches or ranks do not use there", node.text));
}

/// A segment's gradients come from the loss: its own, or through the gradients of its outputs.
void Mathematics::check_has_a_gradient(const Place& at, int output_gradients) {
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

void Mathematics::note_gradient_use(uint64_t signature) {
  const auto sum = summed_gradients_.find(signature);
  if (sum == summed_gradients_.end()) {
    used_gradients_.insert(signature);
  } else {
    used_gradients_.insert(sum->second.begin(), sum->second.end());
  }
}

void Mathematics::check_gradients_used() {
  for (const auto& [signature, made] : computed_gradients_)
    if (!used_gradients_.contains(signature))
      fail(made.first, "gradient in vain",
           fmt::format("no backward uses the gradient that it computes for an input ({})", made.second));
}

}  // namespace lockstep::proof
