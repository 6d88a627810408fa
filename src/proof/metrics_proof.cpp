#include "proof/metrics_proof.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::proof {

void MetricsProof::before_collective(const std::vector<Place>& members) {
  const Place& first = members.front();
  if (instruction(first).kind != program::InstructionKind::agree) return;
  std::vector<Atom> found;
  int previous_leaf = -1;
  for (const Place& member : members)
    for (const program::Operand& operand : instruction(member).operands) {
      if (operand.role != program::Role::metrics) continue;
      for (const Piece& piece : read(member, operand)) {
        if (!expressions().is_gradient_sum(piece.expression)) continue;  // how a snapshot went
        const auto& atoms = expressions().atoms(piece.expression);
        found.insert(found.end(), atoms.begin(), atoms.end());
        if (world().reduction() == layout::Reduction::reproducible)
          previous_leaf = check_order(member, piece.expression, previous_leaf);
      }
    }
  if (found.empty()) return;
  std::sort(found.begin(), found.end());
  auto expected = expressions().complete_atoms(first.iteration, 1);
  if (world().has_servers())
    std::erase_if(expected, [&](const Atom& one) {
      return std::none_of(members.begin(), members.end(),
                          [&](const Place& member) { return world().computes(member.rank, one.leaf); });
    });
  if (found != expected)
    fail(
        first, "metrics",
        fmt::format("the metrics agreed on should hold every leaf once: {}", difference(found, expected, 1)));
}

int MetricsProof::check_order(const Place& member, int expression, int previous_leaf) {
  const std::vector<Atom> atoms = expressions().atoms(expression);
  const int leaf = atoms.front().leaf;
  // The numbers of one leaf are one piece.
  int ascending = Expressions::kNothing;
  for (const Atom& one : atoms) ascending = expressions().chain(ascending, one);
  if (atoms.back().leaf != leaf || ascending != expression)
    fail(member, "metrics",
         fmt::format("metrics should be of one leaf, micro-batches ascending; these are {}",
                     text(member, expression)));
  // The sum goes over positions: members in the order of their group, each one's operands in their own.
  if (leaf < previous_leaf)
    fail(member, "order",
         fmt::format("its metrics of leaf {} stand after those of leaf {}; the sum goes over positions, so "
                     "leaves must ascend",
                     leaf, previous_leaf));
  return leaf;
}

}  // namespace lockstep::proof
