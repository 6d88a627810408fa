#include "proof/gradient_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace lockstep::proof {

void GradientProof::before(const Place& at) {
  switch (instruction(at).kind) {
    case program::InstructionKind::add:
      return check_add(at);
    case program::InstructionKind::norm:
    case program::InstructionKind::propose:
      for (const program::Operand& operand : instruction(at).operands)
        if (operand.role == program::Role::gradients)
          for (const Piece& piece : read(at, operand))
            if (piece.expression != Expressions::kNothing) check_final(at, piece);
      return;
    case program::InstructionKind::update:
      return check_update(at);
    default:
      return;
  }
}

void GradientProof::check_add(const Place& at) {
  const auto& operands = instruction(at).operands;
  const bool destination_first = operands[0].role == program::Role::destination;
  const program::Operand& destination = operands[destination_first ? 0 : 1];
  const program::Operand& source = operands[destination_first ? 1 : 0];
  if (destination.dtype != source.dtype)
    fail(at, "dtype",
         fmt::format("it adds {} to {}; cast one of them first", lockstep::name_of(source.dtype),
                     lockstep::name_of(destination.dtype)));
}

bool GradientProof::check_final(const Place& at, const Piece& piece) {
  if (machine().is_final_gradient(at, piece)) return true;
  if (piece.parameter < 0) {
    fail(at, "gradient", fmt::format("expected gradients there, found {}", text(at, piece.expression)));
    return false;
  }
  const ModelParameter& parameter = nth(world().parameters(), piece.parameter);
  const int uses = static_cast<int>(parameter.uses.size());
  std::string wanted = "the sum of all leaves";
  if (world().reduction() == layout::Reduction::reproducible)
    wanted = text(at, expressions().canonical(at.iteration, uses), uses);
  else if (expressions().is_gradient_sum(piece.expression))
    wanted += fmt::format(" ({})", difference(expressions().atoms(piece.expression),
                                              expressions().complete_atoms(at.iteration, uses), uses));
  fail(at, "gradient",
       fmt::format("the gradient of '{}' should be {}, but what arrives is {}", parameter.name, wanted,
                   text(at, piece.expression, uses)));
  return false;
}

void GradientProof::check_update(const Place& at) {
  const program::Operand *parameters = nullptr, *gradients = nullptr;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role == program::Role::parameters) parameters = &operand;
    if (operand.role == program::Role::gradients) gradients = &operand;
  }
  const int64_t parameter_width = size_of(parameters->dtype), width = size_of(gradients->dtype);
  for (const HeldRun& part : machine().held().in(at.rank, parameters->range)) {
    program::ByteRange bytes = gradients->range;
    bytes.offset += part.begin / parameter_width * width;
    bytes.size_bytes = (part.end - part.begin) / parameter_width * width;
    for (const Piece& piece : machine().read(at, bytes, gradients->dtype)) {
      if (piece.expression == Expressions::kNothing || !check_final(at, piece)) continue;
      const int64_t expected = part.position + piece.begin * 4 / width;
      if (piece.parameter != part.parameter || piece.position != expected)
        fail(at, "place",
             fmt::format("byte {} of '{}' meets the gradient of {}", expected,
                         nth(world().parameters(), part.parameter).name, machine().name_of(piece)));
      else
        check_equal(at, {part.parameter, expected, expected + (piece.end - piece.begin) * 4 / width},
                    piece.expression);
    }
  }
}

void GradientProof::check_equal(const Place& at, const Expressions::Coverage& bytes, int expression) {
  // Otherwise it is the canonical tree, or one server's update.
  if (world().reduction() != layout::Reduction::fast || world().has_servers()) return;
  auto& known = updated_[{at.iteration, bytes.parameter}];
  int64_t from = bytes.begin;
  auto next = known.upper_bound(from);
  if (next != known.begin() && std::prev(next)->second.end > from) --next;
  while (from < bytes.end) {
    const int64_t known_from = next == known.end() ? bytes.end : std::min(bytes.end, next->first);
    if (from < known_from) known.emplace(from, Updated{known_from, expression, at});
    if (known_from == bytes.end) return;
    const Updated& other = next->second;
    if (other.expression != expression) {
      const ModelParameter& parameter = nth(world().parameters(), bytes.parameter);
      const int uses = static_cast<int>(parameter.uses.size());
      return fail(
          at, "replicas",
          fmt::format("it updates byte {} of '{}' with {}, but rank {} with {}; both should add in the "
                      "same order and round in the same places",
                      std::max(from, next->first), parameter.name, text(at, expression, uses), other.by.rank,
                      text(at, other.expression, uses)));
    }
    from = other.end;
    ++next;
  }
}

void GradientProof::before_push(const Place& worker, const program::Operand& pushed, int server, int serve) {
  for (const HeldRun& part : machine().held().in_serve(server, serve)) {
    program::ByteRange bytes = pushed.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    const std::string& name = nth(world().parameters(), part.parameter).name;
    for (const Piece& piece : machine().read(worker, bytes, pushed.dtype)) {
      if (piece.expression == Expressions::kNothing) continue;
      const int64_t expected = part.position + piece.begin;
      if (!expressions().is_gradient_sum(piece.expression))
        fail(
            worker, "gradient",
            fmt::format("expected a gradient of '{}' there, found {}", name, text(worker, piece.expression)));
      else if (piece.parameter != part.parameter || piece.position != expected)
        fail(worker, "place",
             fmt::format("byte {} of '{}' on rank {} meets the gradient of {}", expected, name, server,
                         machine().name_of(piece)));
      pushed_[worker.iteration][part.parameter].push_back(
          {{part.parameter, expected, expected + piece.end - piece.begin}, piece.expression, worker});
    }
  }
}

void GradientProof::finish(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration)
    for (const auto& [parameter, pushes] : pushed_[iteration]) check_pushes(parameter, pushes, iteration);
}

void GradientProof::check_pushes(int parameter, const std::vector<Pushed>& pushes, int iteration) {
  const ModelParameter& model = nth(world().parameters(), parameter);
  const int uses = static_cast<int>(model.uses.size());
  const auto expected = expressions().complete_atoms(iteration, uses);
  std::set<int64_t> borders;
  for (const Pushed& one : pushes) borders.insert({one.bytes.begin, one.bytes.end});
  for (auto begin = borders.begin(); std::next(begin) != borders.end(); ++begin) {
    std::vector<Expressions::Atom> together;
    const Pushed* last = nullptr;
    for (const Pushed& one : pushes) {
      if (one.bytes.begin > *begin || one.bytes.end <= *begin) continue;
      const auto& atoms = expressions().atoms(one.expression);
      together.insert(together.end(), atoms.begin(), atoms.end());
      last = &one;
    }
    if (last == nullptr) continue;
    std::sort(together.begin(), together.end());
    if (together != expected)
      fail(last->by, "push " + model.name,
           fmt::format("all workers' pushes of '{}' together should hold every leaf once: {}", model.name,
                       difference(together, expected, uses)));
  }
}

}  // namespace lockstep::proof
