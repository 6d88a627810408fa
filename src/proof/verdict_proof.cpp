#include "proof/verdict_proof.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "layout/norm_chunks.h"
#include "program/regions.h"
#include "proof/coverage.h"

namespace lockstep::proof {

void VerdictProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  switch (i.kind) {
    case program::InstructionKind::norm:
      return check_measured(at);
    case program::InstructionKind::propose:
      proposed_.insert(at.iteration);
      [[fallthrough]];
    case program::InstructionKind::ratios:
      check_measured(at);
      return check_obeyed(at);
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
  const program::Instruction& i = instruction(at);
  for (const program::Operand& operand : i.operands) {
    if (operand.role == program::Role::verdict || operand.role == program::Role::predicate)
      check_verdict(at, operand);
    if (operand.role == program::Role::scales && i.kind == program::InstructionKind::update)
      check_scales(at, operand);
  }
  const std::vector<Obeyed> all = obeyed_by(at);
  std::vector<Obeyed> verdicts = all, own = all;
  std::erase_if(verdicts, [](const Obeyed& one) { return one.role != program::Role::verdict; });
  check_obeys_the_same(at, verdicts, verdicts_);
  // What scales follow from is written whether or not the step is finite; updates write nothing then.
  if (i.kind == program::InstructionKind::ratios) return;
  std::erase_if(own, [](const Obeyed& one) { return one.role == program::Role::scales; });
  check_obeys_the_same(at, own, obeyed_);
  if (i.kind == program::InstructionKind::update) check_obeys_the_same(at, all, scaled_);
}

/// Gradients, parameters and sums that are summed up.
void VerdictProof::check_measured(const Place& at) {
  const program::Instruction& i = instruction(at);
  for (const program::Operand& operand : i.operands) {
    if (!program::reads(operand.access)) continue;
    const bool has_position =
        operand.role == program::Role::gradients || operand.role == program::Role::parameters;
    if (operand.role == program::Role::chunks) check_sums(at, operand);
    for (const Piece& piece : read(at, operand)) {
      const auto& node = expressions().node(piece.expression);
      if (!has_position) {
        if (node.kind == Expressions::Kind::facts && node.iteration != at.iteration)
          fail(at, "stale",
               fmt::format("its {} is of an earlier step", lockstep::program::name_of(operand.role)));
      } else if (piece.parameter >= 0 &&
                 (operand.role == program::Role::parameters ? node.kind == Expressions::Kind::parameter
                                                            : machine().is_final_gradient(at, piece))) {
        check_position(at, operand, piece);
      }
    }
  }
}

/// The index of an operand `chunks` says what its sums are of. Scales are made of those of all elements.
void VerdictProof::check_sums(const Place& at, const program::Operand& chunks) {
  for (const Piece& piece : read(at, chunks)) {
    const auto& node = expressions().node(piece.expression);
    if (piece.expression == Expressions::kNothing) continue;
    const auto& facts = node.facts;
    const std::vector<Expressions::Coverage>* lists[] = {&facts.norm, &facts.parameters, &facts.updates};
    bool fits = node.kind == Expressions::Kind::facts && chunks.index >= 0 &&
                chunks.index < layout::kMeasuredCount && piece.position == piece.begin;
    for (int m = 0; m < layout::kMeasuredCount && fits; ++m) fits = lists[m]->empty() == (m != chunks.index);
    if (!fits) {
      fail(at, "sums",
           fmt::format("its chunks {} should be the sums of squares of all {}", chunks.index,
                       chunks.index == 0   ? "gradients"
                       : chunks.index == 1 ? "parameters"
                                           : "updates"));
      continue;
    }
    if (instruction(at).kind != program::InstructionKind::ratios) continue;
    // All ranks have the same sums.
    const auto [gap, is_new] = sum_gaps_.try_emplace({piece.expression, chunks.index});
    if (is_new) gap->second = coverage_gap(world().parameters(), *lists[chunks.index], true);
    if (!gap->second.empty())
      fail(at, "coverage",
           fmt::format("its chunks {} should be of every parameter once; they are of {}", chunks.index,
                       gap->second));
  }
}

/// They are of this step, one for each parameter, and follow from gradients and parameters, and from updates
/// where these are proposed.
void VerdictProof::check_scales(const Place& at, const program::Operand& scales) {
  for (const Piece& piece : read(at, scales)) {
    if (piece.expression == Expressions::kNothing) continue;
    const auto& node = expressions().node(piece.expression);
    if (node.kind != Expressions::Kind::facts || piece.position != piece.begin ||
        node.facts.parameters.empty() || node.facts.norm.empty() ||
        node.facts.updates.empty() == proposed_.contains(at.iteration))
      fail(at, "scales",
           fmt::format("its scales are {}; they must be those of all parameters, from norms of gradients and "
                       "parameters, and of updates if and only if these are proposed",
                       text(at, piece.expression)));
    else if (node.iteration != at.iteration)
      fail(at, "scales", "its scales are of an earlier step");
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

/// A norm has seen every gradient once, and a flag is a norm's.
void VerdictProof::check_coverage(const Place& at, program::Role role, int expression) {
  const Expressions::Facts& facts = expressions().node(expression).facts;
  const bool has_norm = !facts.norm.empty(), is_flag = role == program::Role::predicate;
  const auto [gap, is_new] = gaps_.try_emplace({expression, is_flag});
  if (is_new && (has_norm || is_flag)) gap->second = coverage_gap(world().parameters(), facts.norm, true);
  if (!gap->second.empty())
    fail(at, "coverage",
         fmt::format("its {} should have seen every gradient once; it has seen {}",
                     lockstep::program::name_of(role), gap->second));
}

std::vector<VerdictProof::Obeyed> VerdictProof::obeyed_by(const Place& at) {
  std::vector<Obeyed> list;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role != program::Role::verdict && operand.role != program::Role::predicate &&
        operand.role != program::Role::scales)
      continue;
    if (program::writes(operand.access)) continue;
    for (const Piece& piece : read(at, operand)) {
      const auto& facts = expressions().node(piece.expression).facts;
      list.push_back({operand.role, operand.index, piece.position, piece.end - piece.begin,
                      !facts.norm.empty(), !facts.parameters.empty(), !facts.updates.empty()});
    }
  }
  std::sort(list.begin(), list.end());
  return list;
}

/// Replicas stay equal, and a step is taken as a whole, if every update is held to the same conditions.
/// That a verdict or flag has seen everything is another check's business.
void VerdictProof::check_obeys_the_same(const Place& at, const std::vector<Obeyed>& own,
                                        std::map<int, Obedience>& known) {
  const auto [found, is_new] = known.try_emplace(at.iteration, Obedience{at, own});
  if (is_new || found->second.what == own) return;
  const Place& first = found->second.by;
  fail(at, "obeys",
       fmt::format("it obeys {}; rank {}, {}, obeys {}; all updates of a step must obey the same",
                   text_of(own), first.rank, lockstep::program::describe(program(first), first.index),
                   text_of(found->second.what)));
}

std::string VerdictProof::text_of(const std::vector<Obeyed>& list) {
  std::vector<std::string> parts;
  for (const Obeyed& one : list)
    parts.push_back(fmt::format("{}.{} (bytes {}+{} of {})", lockstep::program::name_of(one.role), one.index,
                                one.position, one.size_bytes,
                                one.role == program::Role::scales ? "scales"
                                : one.has_norm                    ? "a norm's verdict"
                                                                  : "an agreement"));
  return parts.empty() ? "nothing" : join(parts, ", ");
}

}  // namespace lockstep::proof
