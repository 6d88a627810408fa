#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "program/regions.h"
#include "proof/mathematics.h"

namespace lockstep::proof {
namespace {

const program::Operand& data_of(const program::Instruction& instruction) {
  return *std::find_if(instruction.operands.begin(), instruction.operands.end(),
                       [](const program::Operand& operand) { return operand.role == program::Role::data; });
}

}  // namespace

void Mathematics::transfer(const Place& from, const program::Operand& send, const Place& to,
                           const program::Operand& receive) {
  memory(to.rank).write(receive.range, memory(from.rank).read(send.range));
}

void Mathematics::collective(const std::vector<Place>& members) {
  switch (instruction(members.front()).kind) {
    case program::InstructionKind::all_reduce:
      return reduce(members, false);
    case program::InstructionKind::reduce_scatter:
      return reduce(members, true);
    case program::InstructionKind::all_gather:
      return all_gather(members);
    case program::InstructionKind::ring_reduce_scatter:
      return ring_reduce_scatter(members);
    case program::InstructionKind::ring_all_gather:
      return ring_all_gather(members);
    case program::InstructionKind::broadcast:
      return broadcast(members);
    default:
      return agree(members);
  }
}

/// Sums of squares by chunks, of which each member knows some and has zero for the others: adding them rounds
/// nothing, in any order.
bool Mathematics::are_partial_norms(const std::vector<Piece>& pieces) const {
  const int iteration = expressions_.node(pieces.front().expression).iteration;
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    const auto& node = expressions_.node(piece.expression);
    return node.kind == Expressions::Kind::facts && node.iteration == iteration &&
           piece.dtype == DType::float64 && !node.facts.counted && node.facts.finite.empty();
  });
}

Piece Mathematics::reduced(const std::vector<Piece>& pieces, bool ordered, int64_t begin, int64_t end) {
  Piece result = pieces.front();
  result.begin = begin;
  result.end = end;
  if (pieces.size() == 1) return result;
  std::vector<int> children;
  bool aligned = true, defined = true;
  for (const Piece& piece : pieces) {
    defined = defined && piece.expression != Expressions::kNothing;
    aligned = aligned && piece.parameter == result.parameter && piece.position == result.position &&
              expressions_.is_gradient_sum(piece.expression);
    children.push_back(piece.expression);
  }
  if (!defined) {
    result.expression = Expressions::kNothing;
  } else if (are_partial_norms(pieces)) {
    Expressions::Facts merged;
    for (const Piece& piece : pieces) {
      std::set<int> seen;  // of each member anew: what two of them have seen counts twice
      merge_facts({piece}, seen, merged);
    }
    result.expression =
        expressions_.facts(expressions_.node(pieces.front().expression).iteration, std::move(merged));
  } else if (aligned) {
    result.expression = ordered ? expressions_.tree(children) : expressions_.reduction(std::move(children));
  } else {
    std::string parts;
    for (const Piece& piece : pieces)
      parts += fmt::format("{}{} ({})", parts.empty() ? "" : ", ", expressions_.text(piece.expression, 0, 1),
                           name_of(piece));
    result.expression = expressions_.wrong("a reduction of what does not belong together: " + parts);
  }
  return result;
}

void Mathematics::reduce(const std::vector<Place>& members, bool scatter) {
  std::vector<std::vector<Piece>> contributions;
  for (const Place& member : members) contributions.push_back(read(member, data_of(instruction(member))));
  const bool ordered = instruction(members.front()).ordered;
  std::vector<Piece> result;
  align(contributions, [&](int64_t begin, int64_t end, const std::vector<Piece>& pieces) {
    result.push_back(reduced(pieces, ordered, begin, end));
  });
  const int unspecified = expressions_.wrong("what a reduce_scatter leaves in other ranks' blocks");
  for (size_t m = 0; m < members.size(); ++m) {
    program::ByteRange range = data_of(instruction(members[m])).range;
    if (!scatter) {
      memory(members[m].rank).write(range, result);
      continue;
    }
    memory(members[m].rank).write(range, unspecified, DType::float32);
    const int64_t block = range.size_bytes / static_cast<int64_t>(members.size());
    const int64_t begin = block * static_cast<int64_t>(m), end = begin + block;
    std::vector<Piece> own;
    for (Piece piece : result) {
      if (piece.end <= begin || piece.begin >= end) continue;
      const int64_t from = std::max(piece.begin, begin);
      piece.position = piece.position_at(from);
      piece.begin = from;
      piece.end = std::min(piece.end, end);
      own.push_back(piece);
    }
    memory(members[m].rank).write(range, own);
  }
}

void Mathematics::all_gather(const std::vector<Place>& members) {
  const auto block_of = [&](const Place& member, size_t block) {
    program::ByteRange range = data_of(instruction(member)).range;
    range.size_bytes /= static_cast<int64_t>(members.size());
    range.offset += range.size_bytes * static_cast<int64_t>(block);
    return range;
  };
  for (size_t block = 0; block < members.size(); ++block) {
    const auto pieces = memory(members[block].rank).read(block_of(members[block], block));
    for (size_t m = 0; m < members.size(); ++m)
      if (m != block) memory(members[m].rank).write(block_of(members[m], block), pieces);
  }
}

void Mathematics::broadcast(const std::vector<Place>& members) {
  const auto root = static_cast<size_t>(instruction(members.front()).root);
  const auto pieces = memory(members[root].rank).read(data_of(instruction(members[root])).range);
  for (size_t m = 0; m < members.size(); ++m)
    if (m != root) memory(members[m].rank).write(data_of(instruction(members[m])).range, pieces);
}

bool Mathematics::check_metrics(const std::vector<Place>& members) {
  std::vector<Atom> found;
  int previous_leaf = -1;
  for (const Place& member : members)
    for (const program::Operand& operand : instruction(member).operands) {
      if (operand.role != program::Role::metrics) continue;
      for (const Piece& piece : read(member, operand)) {
        if (!expressions_.is_gradient_sum(piece.expression)) continue;  // not of leaves: how a snapshot went
        const auto& atoms = expressions_.atoms(piece.expression);
        // The numbers of one leaf are one piece.
        found.insert(found.end(), atoms.begin(), atoms.end());
        const bool one_leaf = atoms.front().leaf == atoms.back().leaf;
        int ordered = Expressions::kNothing;
        for (const Atom& one : atoms) ordered = expressions_.chain(ordered, one);
        if (world_.reduction() == layout::Reduction::reproducible &&
            (!one_leaf || ordered != piece.expression))
          fail(member, "metrics",
               fmt::format("metrics should be of one leaf, micro-batches ascending; these are {}",
                           expressions_.text(piece.expression, member.iteration, 1)));
        // The sum goes over positions: members in the order of their group, each one's operands in their own.
        const int leaf = atoms.front().leaf;
        if (world_.reduction() == layout::Reduction::reproducible && leaf < previous_leaf)
          fail(member, "order",
               fmt::format("its metrics of leaf {} stand behind those of leaf {}; the sum goes over "
                           "positions, so leaves must ascend",
                           leaf, previous_leaf));
        previous_leaf = leaf;
      }
    }
  if (found.empty()) return false;
  std::sort(found.begin(), found.end());
  const int iteration = members.front().iteration;
  const std::vector<Atom> expected = expressions_.complete_atoms(iteration, 1);
  if (found != expected)
    fail(
        members.front(), "metrics",
        fmt::format("the metrics agreed on should hold every leaf once: {}", difference(found, expected, 1)));
  return true;
}

void Mathematics::agree(const std::vector<Place>& members) {
  std::set<int> seen;
  Expressions::Facts merged{.counted = check_metrics(members)};
  for (const Place& member : members)
    for (const program::Operand& operand : instruction(member).operands)
      if (operand.role == program::Role::source ||
          (operand.role == program::Role::verdict && program::reads(operand.access)))
        merge_facts(read(member, operand), seen, merged);
  const int facts = expressions_.facts(members.front().iteration, std::move(merged));
  for (const Place& member : members)
    for (const program::Operand& operand : instruction(member).operands)
      if (program::writes(operand.access))
        memory(member.rank)
            .write(operand.range, operand.role == program::Role::verdict ? facts : Expressions::kOther,
                   operand.dtype);
}

void Mathematics::push(const Place& worker, const program::Operand& gradients, int server, int serve) {
  const program::Operand* owned = nullptr;
  for (const program::Operand& operand : world_.instruction(server, serve).operands)
    if (operand.role == program::Role::parameters) owned = &operand;
  for (const HeldPart& part : held_in(server, owned->range)) {
    program::ByteRange bytes = gradients.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    for (const Piece& piece : read(worker, bytes, gradients.dtype)) {
      if (piece.expression == Expressions::kNothing) continue;
      const int64_t expected = part.position + piece.begin;
      const std::string& name = nth(world_.parameters(), part.parameter).name;
      if (!expressions_.is_gradient_sum(piece.expression))
        fail(worker, "gradient",
             fmt::format("a gradient of '{}' belongs there, and there is {}", name,
                         expressions_.text(piece.expression, worker.iteration, 1)));
      else if (piece.parameter != part.parameter || piece.position != expected)
        fail(worker, "place",
             fmt::format("byte {} of '{}' on rank {} meets the gradient of {}", expected, name, server,
                         name_of(piece)));
      pushed_[worker.iteration].push_back(
          {{part.parameter, expected, expected + piece.end - piece.begin}, piece.expression, worker});
    }
  }
}

void Mathematics::push_metrics(const Place& worker, const program::Operand& metrics) {
  auto& together = pushed_metrics_[worker.iteration];
  for (const Piece& piece : read(worker, metrics)) {
    const auto& atoms = expressions_.atoms(piece.expression);
    together.insert(together.end(), atoms.begin(), atoms.end());
  }
}

void Mathematics::pull(const Place& worker, const program::Operand& parameters, int server, int serve) {
  const program::Operand* owned = nullptr;
  for (const program::Operand& operand : world_.instruction(server, serve).operands)
    if (operand.role == program::Role::parameters) owned = &operand;
  memory(worker.rank).write(parameters.range, Expressions::kOther, parameters.dtype);
  std::vector<Piece> pieces;
  for (const HeldPart& part : held_in(server, owned->range))
    pieces.push_back({part.begin, part.end, expressions_.parameter(Expressions::kPulled), part.parameter,
                      part.position, DType::float32});
  memory(worker.rank).write(parameters.range, pieces);
}

}  // namespace lockstep::proof
