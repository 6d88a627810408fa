#include "proof/symbolic_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "program/instruction_rules.h"
#include "tensor/convert.h"

namespace lockstep::proof {

SymbolicMachine::SymbolicMachine(const ProgramWorld& world)
    : world_(world),
      held_(world),
      expressions_(world.leaves(), world.micro_batches_per_leaf(), world.wire() != DType::float32) {
  for (int rank = 0; rank < world.size(); ++rank) memories_.emplace_back(world.program(rank));
  enter_initial_contents();
}

void SymbolicMachine::enter_initial_contents() {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const program::Program& program = world_.program(rank);
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const program::ByteRange whole = program.whole(static_cast<int>(b));
      if (program.buffers[b].space == program::Space::optimizer)
        memory(rank).write(whole, expressions_.state(0), DType::float32);
      const auto held = held_.in(rank, whole);
      if (held.empty()) continue;
      memory(rank).write(whole, Expressions::kOther, DType::float32);
      for (const HeldRun& part : held)
        memory(rank).write(whole, {{part.begin, part.end, expressions_.parameter(0), part.parameter,
                                    part.position, DType::float32}});
    }
    enter_residuals(rank);
  }
}

/// They are kept like the gradients that they belong to, gaps of buckets included.
void SymbolicMachine::enter_residuals(int rank) {
  for (const program::ResidualPlace& place : world_.program(rank).residuals) {
    const int64_t each = place.leaf_bytes(world_.program(rank).buffer(place.buffer).size_bytes);
    for (int i = 0; i < place.leaves; ++i) {
      std::vector<Piece> pieces;
      int64_t done = 0;
      const auto enter = [&](int64_t from, int64_t to, int parameter, int use, int64_t position) {
        if (from < std::min(to, each))
          pieces.push_back({from, std::min(to, each), expressions_.residual(0, use, place.first_leaf + i),
                            parameter, position, DType::float32});
      };
      for (const ProgramWorld::BucketUse& use : world_.bucket(place.segment)) {
        if (use.begin == program::kNoGradient) continue;
        enter(done, use.begin, kPaddingParameter - place.segment, 0, done);
        enter(use.begin, use.end, use.parameter, use.use, 0);
        done = use.end;
      }
      enter(done, each, kPaddingParameter - place.segment, 0, done);
      memory(rank).write({place.buffer, i * each, each}, pieces);
    }
  }
}

std::vector<Piece> SymbolicMachine::read(const Place& at, const program::ByteRange& range, DType dtype) {
  std::vector<Piece> pieces = memory(at.rank).read(range);
  for (Piece& piece : pieces)
    if (piece.dtype != dtype && piece.expression != Expressions::kNothing &&
        piece.expression != Expressions::kOther)
      piece.expression = expressions_.wrong(fmt::format(
          "{} in elements of {}, read as {}", expressions_.text(piece.expression, at.iteration, 1),
          lockstep::name_of(piece.dtype), lockstep::name_of(dtype)));
  return pieces;
}

Expressions::Atom SymbolicMachine::atom(const Place& at, int use) const {
  const program::Instruction& i = instruction(at);
  return {at.iteration, use, i.leaf, world_.micro_batch_in_leaf(at.rank, i)};
}

int SymbolicMachine::gradient(const Place& at, int use) {
  const Expressions::Atom first = atom(at, use);
  const auto& [known, is_new] = gradients_.try_emplace({first, instruction(at).leaves});
  if (is_new) {
    std::vector<int> leaves;
    for (Expressions::Atom one = first; one.leaf < first.leaf + instruction(at).leaves; ++one.leaf)
      leaves.push_back(expressions_.chain(Expressions::kNothing, one));
    known->second = expressions_.tree(leaves);
  }
  return known->second;
}

uint64_t SymbolicMachine::signature_of(const Place& at, const program::Operand& operand, int ordinal) const {
  const program::Instruction& i = instruction(at);
  // A recomputation makes the same values as forward; what backward_input leaves for backward_weight is new.
  const int segment = program::is_backward(i.kind) ? -1 - i.segment : i.segment;
  uint64_t signature = hash64(lockstep::program::name_of(operand.role));
  for (const int64_t part : {int64_t{segment}, int64_t{ordinal}, extent_of(operand)})
    signature = hash_combine(signature, static_cast<uint64_t>(part));
  return signature;
}

int SymbolicMachine::stored(int expression, DType dtype) {
  if (!tensor::is_narrow(dtype) || !expressions_.is_gradient_sum(expression)) return expression;
  if (dtype == world_.wire()) return expressions_.rounded(expression);
  return expressions_.wrong(
      fmt::format("a gradient rounded to {}, which the program does not declare", lockstep::name_of(dtype)));
}

int SymbolicMachine::converted(int expression, DType from, DType to) {
  const bool is_known = expression != Expressions::kNothing && expression != Expressions::kOther;
  if (!is_known || expressions_.is_gradient_sum(expression)) return stored(expression, to);
  // A copy in a narrower type is the value itself to who reads it as such, and rounded to everybody else.
  if (tensor::is_narrow(from) && to != from)
    return expressions_.wrong(fmt::format("{}, which was rounded to {}", expressions_.text(expression, 0, 1),
                                          lockstep::name_of(from)));
  return expression;
}

bool SymbolicMachine::is_final_gradient(const Place& at, const Piece& piece) {
  if (piece.parameter < 0) return piece.parameter <= kPaddingParameter;
  const int uses = static_cast<int>(nth(world_.parameters(), piece.parameter).uses.size());
  if (world_.has_servers()) return is_own_gradient(at, piece, uses);
  if (world_.reduction() == layout::Reduction::reproducible)
    return piece.expression == expressions_.canonical(at.iteration, uses);
  return expressions_.is_gradient_sum(piece.expression) &&
         (!world_.error_feedback() || expressions_.rounds_each_leaf(piece.expression)) &&
         expressions_.is_complete(piece.expression, at.iteration, uses);
}

bool SymbolicMachine::is_own_gradient(const Place& at, const Piece& piece, int uses) {
  if (!expressions_.is_gradient_sum(piece.expression)) return false;
  auto own = expressions_.complete_atoms(at.iteration, uses);
  std::erase_if(own, [&](const auto& one) { return !world_.computes(at.rank, one.leaf); });
  auto found = expressions_.atoms(piece.expression);
  std::sort(found.begin(), found.end());
  return found == own;
}

std::string SymbolicMachine::name_of(const Piece& piece) const {
  if (piece.parameter >= 0)
    return fmt::format("byte {} of '{}'", piece.position, nth(world_.parameters(), piece.parameter).name);
  return piece.parameter == kMetricsParameter ? "metrics"
                                              : fmt::format("byte {} of something else", piece.position);
}

}  // namespace lockstep::proof
