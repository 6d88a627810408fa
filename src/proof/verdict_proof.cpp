#include "proof/verdict_proof.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "program/regions.h"
#include "proof/coverage.h"

namespace lockstep::proof {

void VerdictProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  switch (i.kind) {
    case program::InstructionKind::finite:
      flags_.try_emplace(at.iteration, at);
      return check_norm_or_finite(at);
    case program::InstructionKind::norm:
      return check_norm_or_finite(at);
    case program::InstructionKind::update:
      return check_obeyed(at);
    default:
      return;
  }
}

/// Where no push waits for what its step comes to, each has what is known; otherwise the last to each server.
void VerdictProof::before_push(const Place& worker, const program::Operand&, int, int) {
  const auto& operands = instruction(worker).operands;
  if (std::ranges::find(operands, program::Role::verdict, &program::Operand::role) != operands.end())
    check_obeyed(worker);
}

void VerdictProof::check_obeyed(const Place& at) {
  for (const program::Operand& operand : instruction(at).operands)
    if (operand.role == program::Role::verdict || operand.role == program::Role::predicate)
      check_verdict(at, operand);
  check_obeys_the_same(at);
}

void VerdictProof::check_norm_or_finite(const Place& at) {
  const program::Instruction& i = instruction(at);
  for (const program::Operand& operand : i.operands) {
    if (!program::reads(operand.access)) continue;
    for (const Piece& piece : read(at, operand)) {
      const auto& node = expressions().node(piece.expression);
      if (operand.role != program::Role::gradients) {
        if (node.kind == Expressions::Kind::facts && node.iteration != at.iteration)
          fail(at, "stale",
               fmt::format("its {} is of an earlier step", lockstep::program::name_of(operand.role)));
      } else if (i.kind == program::InstructionKind::norm && piece.parameter >= 0 &&
                 machine().is_final_gradient(at, piece)) {
        check_position(at, operand, piece);
      }
    }
  }
}

/// Chunks of sums of squares are numbered by the place in the bucket that the operand states.
void VerdictProof::check_position(const Place& at, const program::Operand& gradients, const Piece& piece) {
  const ModelParameter& parameter = nth(world().parameters(), piece.parameter);
  const program::ParameterPlace::Use& owner = parameter.uses[0];
  const int64_t found = gradients.position + piece.begin * 4 / size_of(piece.dtype);
  const int64_t expected = owner.bucket_offset + piece.position;
  if (owner.segment != gradients.index || found != expected)
    fail(at, "position",
         fmt::format("it takes {} for byte {} of segment {}'s bucket; it belongs to byte {} of segment {}'s",
                     machine().name_of(piece), found, gradients.index, expected, owner.segment));
}

void VerdictProof::check_verdict(const Place& at, const program::Operand& operand) {
  const std::string_view role = lockstep::program::name_of(operand.role);
  for (const Piece& piece : read(at, operand)) {
    if (piece.expression == Expressions::kNothing) continue;
    const auto& node = expressions().node(piece.expression);
    if (node.kind != Expressions::Kind::facts) {
      fail(at, "verdict", fmt::format("its {} is {}", role, text(at, piece.expression)));
      continue;
    }
    if (node.iteration != at.iteration)
      fail(at, "verdict", fmt::format("its {} is of an earlier step", role));
    if (operand.role == program::Role::verdict && !node.facts.counted)
      fail(at, "counted", "its verdict should have counted the metrics of every leaf; it has seen none");
    check_coverage(at, operand.role, piece.expression);
  }
}

/// A norm has seen every gradient once; a flag without one, every gradient.
void VerdictProof::check_coverage(const Place& at, program::Role role, int expression) {
  const Expressions::Facts& facts = expressions().node(expression).facts;
  const bool has_norm = !facts.norm.empty(), is_flag = role == program::Role::predicate;
  const auto [gap, is_new] = gaps_.try_emplace({expression, is_flag});
  if (is_new && (has_norm || is_flag))
    gap->second = coverage_gap(world().parameters(), has_norm ? facts.norm : facts.finite, has_norm);
  if (!gap->second.empty())
    fail(at, "coverage",
         fmt::format("its {} should have seen every gradient{}; it has seen {}",
                     lockstep::program::name_of(role), has_norm ? " once" : "", gap->second));
}

std::vector<VerdictProof::Obeyed> VerdictProof::obeyed_by(const Place& at) {
  std::vector<Obeyed> list;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role != program::Role::verdict && operand.role != program::Role::predicate) continue;
    for (const Piece& piece : read(at, operand)) {
      const auto& facts = expressions().node(piece.expression).facts;
      list.push_back({operand.role, operand.index, piece.position, piece.end - piece.begin,
                      !facts.norm.empty(), !facts.finite.empty()});
    }
  }
  std::sort(list.begin(), list.end());
  return list;
}

/// Replicas stay equal, and a step is taken as a whole, if every update is held to the same conditions.
/// That a verdict or flag has seen everything is another check's business.
void VerdictProof::check_obeys_the_same(const Place& at) {
  const auto own = obeyed_by(at);
  const auto [known, is_new] = obeyed_.try_emplace(at.iteration, Obedience{at, own});
  if (is_new || known->second.what == own) return;
  const Place& first = known->second.by;
  fail(at, "obeys",
       fmt::format("it obeys {}; rank {}, {}, obeys {}; all updates of a step must obey the same",
                   text_of(own), first.rank, lockstep::program::describe(program(first), first.index),
                   text_of(known->second.what)));
}

std::string VerdictProof::text_of(const std::vector<Obeyed>& list) {
  std::vector<std::string> parts;
  for (const Obeyed& one : list)
    parts.push_back(fmt::format("{}.{} (bytes {}+{} of {})", lockstep::program::name_of(one.role), one.index,
                                one.position, one.size_bytes,
                                one.has_norm   ? "a norm's verdict"
                                : one.has_flag ? "an agreement on a flag"
                                               : "an agreement"));
  return parts.empty() ? "nothing" : join(parts, ", ");
}

/// Where there is a `finite`, updates obey it.
void VerdictProof::finish(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const auto flag = flags_.find(iteration);
    const auto updates = obeyed_.find(iteration);
    if (flag == flags_.end() || updates == obeyed_.end()) continue;
    const auto& [by, what] = updates->second;
    if (std::any_of(what.begin(), what.end(),
                    [](const Obeyed& one) { return one.role == program::Role::predicate && one.has_flag; }))
      continue;
    const Place& where = flag->second;
    fail(by, "flag",
         fmt::format("it does not obey the flag of rank {}, {}: its predicate must", where.rank,
                     lockstep::program::describe(program(where), where.index)));
  }
}

}  // namespace lockstep::proof
