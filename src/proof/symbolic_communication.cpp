#include "proof/symbolic_communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/ensure.h"
#include "program/regions.h"
#include "tensor/convert.h"

namespace lockstep::proof {

const program::Operand& data_of(const program::Instruction& collective) {
  return *std::find_if(collective.operands.begin(), collective.operands.end(),
                       [](const program::Operand& operand) { return operand.role == program::Role::data; });
}

namespace {

/// Sums of squares by chunks, of which each member knows some and has zero for the others: adding them rounds
/// nothing, in any order.
bool are_partial_norms(const Expressions& expressions, const std::vector<Piece>& pieces) {
  const int iteration = expressions.node(pieces.front().expression).iteration;
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    const auto& node = expressions.node(piece.expression);
    return node.kind == Expressions::Kind::facts && node.iteration == iteration &&
           piece.position == pieces.front().position && piece.dtype == DType::float64 && !node.facts.counted;
  });
}

int added_norms(Expressions& expressions, const std::vector<Piece>& pieces) {
  Expressions::Facts merged;
  for (const Piece& piece : pieces) {
    std::set<int> seen;  // of each member anew: what two of them have seen counts twice
    expressions.merge_facts(piece.expression, seen, merged);
  }
  return expressions.facts(expressions.node(pieces.front().expression).iteration, std::move(merged));
}

int reduced(SymbolicMachine& machine, const std::vector<Piece>& pieces, bool ordered) {
  Expressions& expressions = machine.expressions();
  const Piece& first = pieces.front();
  if (pieces.size() == 1) return first.expression;
  std::vector<int> children;
  bool aligned = true, defined = true;
  for (const Piece& piece : pieces) {
    defined = defined && piece.expression != Expressions::kNothing;
    aligned = aligned && piece.parameter == first.parameter && piece.position == first.position &&
              expressions.is_gradient_sum(piece.expression);
    children.push_back(piece.expression);
  }
  if (!defined) return Expressions::kNothing;
  if (are_partial_norms(expressions, pieces)) return added_norms(expressions, pieces);
  if (aligned) {
    const auto nodes =
        tensor::is_narrow(first.dtype) ? Expressions::Nodes::rounded : Expressions::Nodes::exact;
    const int sum = ordered ? expressions.tree(children, nodes) : expressions.reduction(std::move(children));
    return machine.stored(sum, first.dtype);
  }
  std::string parts;
  for (const Piece& piece : pieces)
    parts += fmt::format("{}{} ({})", parts.empty() ? "" : ", ", expressions.text(piece.expression, 0, 1),
                         machine.name_of(piece));
  return expressions.wrong("a reduction of what does not belong together: " + parts);
}

}  // namespace

std::vector<Piece> reduction(SymbolicMachine& machine, const std::vector<Place>& members) {
  std::vector<std::vector<Piece>> contributions;
  for (const Place& member : members)
    contributions.push_back(machine.read(member, data_of(machine.instruction(member))));
  const bool ordered = machine.instruction(members.front()).ordered;
  std::vector<Piece> result;
  align(contributions, [&](int64_t begin, int64_t end, const std::vector<Piece>& pieces) {
    Piece& piece = result.emplace_back(pieces.front());
    piece.begin = begin;
    piece.end = end;
    piece.expression = reduced(machine, pieces, ordered);
  });
  return result;
}

namespace {

void all_reduce(SymbolicMachine& machine, const std::vector<Place>& members) {
  const auto result = reduction(machine, members);
  for (const Place& member : members)
    machine.memory(member.rank).write(data_of(machine.instruction(member)).range, result);
}

void agree(SymbolicMachine& machine, const std::vector<Place>& members) {
  std::set<int> seen;
  Expressions::Facts merged;
  for (const Place& member : members)
    for (const program::Operand& operand : machine.instruction(member).operands) {
      const bool is_metrics = operand.role == program::Role::metrics;
      if (!is_metrics && !(operand.role == program::Role::verdict && program::reads(operand.access)))
        continue;
      for (const Piece& piece : machine.read(member, operand))
        if (!is_metrics)
          machine.expressions().merge_facts(piece.expression, seen, merged);
        else if (machine.expressions().is_gradient_sum(piece.expression))  // else: how a snapshot went
          merged.counted = true;
    }
  const int facts = machine.expressions().facts(members.front().iteration, std::move(merged));
  for (const Place& member : members)
    for (const program::Operand& operand : machine.instruction(member).operands)
      if (program::writes(operand.access))
        machine.memory(member.rank)
            .write(operand.range, operand.role == program::Role::verdict ? facts : Expressions::kOther,
                   operand.dtype);
}

}  // namespace

void transfer(SymbolicMachine& machine, const Place& from, const program::Operand& send, const Place& to,
              const program::Operand& receive) {
  machine.memory(to.rank).write(receive.range, machine.memory(from.rank).read(send.range));
}

void collective(SymbolicMachine& machine, const std::vector<Place>& members) {
  const program::InstructionKind kind = machine.instruction(members.front()).kind;
  switch (kind) {
    case program::InstructionKind::all_reduce:
      return all_reduce(machine, members);
    case program::InstructionKind::ring_reduce_scatter:
      return ring_reduce_scatter(machine, members);
    case program::InstructionKind::ring_all_gather:
      return ring_all_gather(machine, members);
    case program::InstructionKind::agree:
      return agree(machine, members);
    default:
      ensure(false, fmt::format("the proofs know no collective '{}'", program::name_of(kind)));
  }
}

void pull(SymbolicMachine& machine, const Place& worker, const program::Operand& parameters, int server,
          int serve) {
  machine.memory(worker.rank).write(parameters.range, Expressions::kOther, parameters.dtype);
  std::vector<Piece> pieces;
  for (const HeldRun& part : machine.held().in_serve(server, serve))
    pieces.push_back({part.begin, part.end, machine.expressions().parameter(Expressions::kPulled),
                      part.parameter, part.position, DType::float32});
  machine.memory(worker.rank).write(parameters.range, pieces);
}

}  // namespace lockstep::proof
