#include "proof/residual_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include "tensor/convert.h"

namespace lockstep::proof {

void ResidualProof::before(const Place& at) {
  if (instruction(at).kind == program::InstructionKind::cast) return check_cast(at);
  if (instruction(at).kind != program::InstructionKind::snapshot) return;
  for (const program::Operand& operand : instruction(at).operands)
    if (operand.role == program::Role::residual) check_saved(at, operand);
  check_all_saved(at);
}

void ResidualProof::check_cast(const Place& at) {
  const program::Operand *source = nullptr, *destination = nullptr, *residual = nullptr;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role == program::Role::source) source = &operand;
    if (operand.role == program::Role::destination) destination = &operand;
    if (operand.role == program::Role::residual) residual = &operand;
  }
  if (residual == nullptr) {
    if (world().error_feedback() && tensor::is_narrow(destination->dtype)) check_without(at, *source);
    return;
  }
  align({read(at, *source), read(at, *residual)}, [&](int64_t, int64_t, const std::vector<Piece>& both) {
    if (both[0].expression != Expressions::kNothing) check_pair(at, both[0], both[1]);
  });
}

/// What is rounded again, or of several leaves, loses nothing that is any leaf's.
void ResidualProof::check_without(const Place& at, const program::Operand& source) {
  for (const Piece& piece : read(at, source))
    if (expressions().is_gradient_sum(piece.expression) && !expressions().rounds_each_leaf(piece.expression))
      fail(at, "no residual",
           fmt::format("it rounds {} of {} without a residual, but the program has error feedback",
                       text(at, piece.expression), machine().name_of(piece)));
}

void ResidualProof::check_pair(const Place& at, const Piece& gradient, const Piece& residual) {
  const Expressions::Node& node = expressions().node(residual.expression);
  if (node.kind != Expressions::Kind::residual)
    return fail(at, "residual",
                fmt::format("expected a residual there, found {}", text(at, residual.expression)));
  const std::optional<Expressions::Atom> leaf = expressions().is_gradient_sum(gradient.expression)
                                                    ? expressions().leaf_of(gradient.expression)
                                                    : std::nullopt;
  if (!leaf)
    return fail(at, "leaf",
                fmt::format("it rounds {} with a residual; expected all of one leaf's gradient",
                            text(at, gradient.expression)));
  const bool fits = node.atom.leaf == leaf->leaf && node.atom.use == leaf->use &&
                    residual.parameter == gradient.parameter && residual.position == gradient.position;
  if (!fits)
    return fail(at, "residual of something else",
                fmt::format("it rounds {} of {} with the residual of {}", text(at, gradient.expression, 2),
                            machine().name_of(gradient), name_of(residual)));
  if (node.a != at.iteration || leaf->iteration != at.iteration)
    fail(at, "version",
         fmt::format("the residual of {} has seen {} roundings, expected {}: two share it, or one is missing",
                     name_of(residual), node.a, at.iteration));
}

void ResidualProof::check_saved(const Place& at, const program::Operand& residual) {
  const int expected = world().trains() ? at.iteration : 0;
  for (const Piece& piece : read(at, residual)) {
    const Expressions::Node& node = expressions().node(piece.expression);
    if (node.kind != Expressions::Kind::residual || node.a != expected)
      fail(at, "saved residual",
           fmt::format("expected a residual after {} roundings there, found {}", expected,
                       text(at, piece.expression, 2)));
  }
}

/// Each of them once.
void ResidualProof::check_all_saved(const Place& at) {
  std::map<int, std::map<int64_t, int64_t>> saved;  // by buffer: ends by begins
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role != program::Role::residual) continue;
    const int64_t begin = operand.range.offset, end = begin + operand.range.size_bytes;
    auto& ranges = saved[operand.range.buffer];
    const auto next = ranges.lower_bound(begin);
    const bool meets = (next != ranges.end() && next->first < end) ||
                       (next != ranges.begin() && std::prev(next)->second > begin);
    if (meets)
      fail(at, "saved twice",
           fmt::format("it saves bytes {}+{} of {} twice", begin, operand.range.size_bytes,
                       program(at).buffer(operand.range.buffer).name));
    ranges.emplace(begin, end);
  }
  for (const program::ResidualPlace& place : world().program(at.rank).residuals)
    for (const Piece& piece : machine().memory(at.rank).read(world().program(at.rank).whole(place.buffer))) {
      if (piece.parameter < 0) continue;
      int64_t bytes = 0;
      for (const auto& [begin, end] : saved[place.buffer])
        bytes += std::max<int64_t>(0, std::min(piece.end, end) - std::max(piece.begin, begin));
      if (bytes != piece.end - piece.begin)
        fail(at, "saved residuals", fmt::format("it does not save the residual of {}", name_of(piece)));
    }
}

void ResidualProof::finish(int iterations) {
  const int expected = world().trains() ? iterations : 0;
  for (int rank = 0; rank < world().size(); ++rank)
    for (const program::ResidualPlace& place : world().program(rank).residuals)
      for (const Piece& piece : machine().memory(rank).read(world().program(rank).whole(place.buffer))) {
        const Expressions::Node& node = expressions().node(piece.expression);
        const bool is_residual = node.kind == Expressions::Kind::residual;
        if (!is_residual || node.a != expected)
          findings().add(
              rank, -1, "residuals",
              fmt::format("residuals of segment {} are to see a rounding in each of {} steps; what "
                          "lies there is {}",
                          place.segment, iterations,
                          expressions().text(piece.expression, iterations - 1, 2)));
      }
}

std::string ResidualProof::name_of(const Piece& residual) {
  const Expressions::Atom& atom = expressions().node(residual.expression).atom;
  return fmt::format("leaf {}, use {}, {}", atom.leaf, atom.use, machine().name_of(residual));
}

}  // namespace lockstep::proof
