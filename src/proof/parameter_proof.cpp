#include "proof/parameter_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "program/instruction_rules.h"
#include "program/regions.h"
#include "proof/coverage.h"

namespace lockstep::proof {

void ParameterProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  const bool updates = i.kind == program::InstructionKind::update;
  for (const program::Operand& operand : i.operands) {
    if (operand.role == program::Role::parameters)
      updates ? check_update(at, operand) : check_read(at, operand);
    if (operand.role == program::Role::state && (updates || i.kind == program::InstructionKind::propose ||
                                                 i.kind == program::InstructionKind::snapshot))
      check_state(at, operand);
  }
  if (program::runs_segment(i.kind)) check_use(at);
}

void ParameterProof::check_read(const Place& at, const program::Operand& operand) {
  auto held = operand.dtype == DType::float32
                  ? machine().held().in(at.rank, operand.range)
                  : machine().held().copies_in(at.rank, operand.range, operand.dtype);
  std::sort(held.begin(), held.end(), [](const HeldRun& a, const HeldRun& b) { return a.begin < b.begin; });
  size_t next = 0;
  for (const Piece& piece : read(at, operand)) {
    while (next < held.size() && held[next].end <= piece.begin) ++next;
    size_t behind = next;
    while (behind < held.size() && held[behind].begin < piece.end) ++behind;
    check_read(at, operand, piece, std::span(held).subspan(next, behind - next));
  }
}

/// `expected` is what the program says lies there: none of it, or several rows of a rectangle.
void ParameterProof::check_read(const Place& at, const program::Operand& operand, const Piece& piece,
                                std::span<const HeldRun> expected) {
  if (piece.expression == Expressions::kNothing) return;
  if (piece.expression == Expressions::kOther && expected.empty()) return;
  const auto& parameters = world().parameters();
  const auto wrong = [&](const std::string& wanted, const std::string& found) {
    fail(at, "parameters",
         fmt::format("its parameters {} should be {}, but are {}",
                     proof::describe(program(at), operand.range), wanted, found));
  };
  const auto& node = expressions().node(piece.expression);
  if (node.kind != Expressions::Kind::parameter)
    return wrong(expected.empty() ? "a parameter"
                                  : fmt::format("'{}'", nth(parameters, expected.front().parameter).name),
                 text(at, piece.expression));
  const ModelParameter& parameter = nth(parameters, piece.parameter);
  if (parameter.frozen && parameter.trained)
    return wrong(fmt::format("'{}', which is frozen", parameter.name), "those of an update");
  const int version = parameter.trained ? at.iteration : 0;
  if (node.a != Expressions::kPulled && node.a != version)
    wrong(fmt::format("'{}' after {} updates", parameter.name, version), text(at, piece.expression));
  for (const HeldRun& run : expected) {
    const int64_t begin = std::max(piece.begin, run.begin);
    const int64_t position = run.position + (begin - run.begin) * 4 / size_of(operand.dtype);
    if (piece.parameter == run.parameter && piece.position_at(begin) == position) continue;
    Piece found = piece;
    found.position = piece.position_at(begin);
    return wrong(fmt::format("byte {} of '{}'", position, nth(parameters, run.parameter).name),
                 machine().name_of(found));
  }
}

/// Which of its parameters an operand holds is up to the program; together they are those that the segment
/// uses, whole.
void ParameterProof::check_use(const Place& at) {
  const program::Instruction& i = instruction(at);
  const auto& bucket = world().bucket(i.segment);
  std::vector<Expressions::Coverage> read_here;
  for (const program::Operand& operand : i.operands) {
    if (operand.role != program::Role::parameters) continue;
    bool holds_used = false;
    for (const Piece& piece : read(at, operand)) {
      if (piece.expression == Expressions::kNothing) return;
      if (expressions().node(piece.expression).kind != Expressions::Kind::parameter) continue;
      holds_used = holds_used || std::any_of(bucket.begin(), bucket.end(), [&](const auto& use) {
                     return use.parameter == piece.parameter;
                   });
      read_here.push_back({piece.parameter, piece.position, piece.position_at(piece.end)});
    }
    if (!holds_used)
      fail(at, "unused parameters",
           fmt::format("segment {} uses no parameter in {}", i.segment,
                       proof::describe(program(at), operand.range)));
  }
  // Products of activations may do without, and so may what is made again of what forward has kept.
  const bool has_kept = std::ranges::any_of(i.operands, [](const program::Operand& operand) {
    return operand.role == program::Role::stash && program::reads(operand.access);
  });
  if (i.kind == program::InstructionKind::backward_weight ||
      (i.kind == program::InstructionKind::recompute && has_kept))
    return;
  std::sort(read_here.begin(), read_here.end());
  check_used_is_whole(at, read_here);
}

void ParameterProof::check_used_is_whole(const Place& at,
                                         const std::vector<Expressions::Coverage>& read_here) {
  const int segment = instruction(at).segment;
  std::set<int> used;
  for (const ProgramWorld::BucketUse& use : world().bucket(segment)) used.insert(use.parameter);
  for (const int parameter : used) {
    const ModelParameter& model = nth(world().parameters(), parameter);
    int64_t done = 0;
    for (const Expressions::Coverage& bytes : read_here)
      if (bytes.parameter == parameter && bytes.begin <= done) done = std::max(done, bytes.end);
    if (done < model.size_bytes)
      fail(at, "missing parameters",
           fmt::format("segment {} uses '{}', and its operands lack it from byte {}", segment, model.name,
                       done));
  }
}

void ParameterProof::check_update(const Place& at, const program::Operand& parameters) {
  const auto held = machine().held().in(at.rank, parameters.range);
  if (held.empty())
    fail(at, "held",
         fmt::format("no parameter of this rank lies in {}", proof::describe(program(at), parameters.range)));
  for (const HeldRun& part : held) {
    const std::string& name = nth(world().parameters(), part.parameter).name;
    program::ByteRange bytes = parameters.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    for (const Piece& piece : machine().read(at, bytes, parameters.dtype)) {
      const auto& node = expressions().node(piece.expression);
      const bool is_parameter = node.kind == Expressions::Kind::parameter;
      if (is_parameter && node.a == at.iteration) continue;
      fail(at, "version",
           is_parameter && node.a == at.iteration + 1
               ? fmt::format("'{}' is updated for a second time in one step", name)
               : fmt::format("expected '{}' after {} updates there, found {}", name, at.iteration,
                             text(at, piece.expression)));
    }
    updated_[at.iteration].push_back({part.parameter, part.position, part.position + part.end - part.begin});
  }
}

void ParameterProof::check_state(const Place& at, const program::Operand& state) {
  // What an update only reads has moved before, in the same step.
  const bool has_moved =
      instruction(at).kind == program::InstructionKind::update && state.access == program::Access::read;
  const int updates = (world().trains() ? at.iteration : 0) + (has_moved ? 1 : 0);
  for (const Piece& piece : read(at, state)) {
    if (piece.expression == Expressions::kNothing) continue;
    const auto& node = expressions().node(piece.expression);
    const bool is_state = node.kind == Expressions::Kind::state;
    if (is_state && node.a == updates) continue;
    const std::string where = proof::describe(program(at), state.range);
    if (!is_state)
      fail(at, "state",
           fmt::format("expected optimizer state in {}, found {}", where, text(at, piece.expression)));
    else
      fail(at, "state",
           fmt::format("optimizer state {} has seen {} updates, expected {}: two updates share it, or one "
                       "is missing",
                       where, node.a, updates));
  }
}

void ParameterProof::before_push(const Place& worker, const program::Operand& pushed, int server, int serve) {
  for (const HeldRun& part : machine().held().in_serve(server, serve)) {
    program::ByteRange bytes = pushed.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    for (const Piece& piece : machine().read(worker, bytes, pushed.dtype))
      if (piece.expression != Expressions::kNothing)
        updated_[worker.iteration].push_back(
            {part.parameter, part.position + piece.begin, part.position + piece.end});
  }
}

void ParameterProof::finish(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const auto& updated = updated_[iteration];
    if (updated.empty() && !world().trains()) continue;
    const std::string gap = coverage_gap(world().parameters(), updated, false);
    if (!gap.empty())
      findings().add(-1, -1, gap, "the step should update every parameter; it updates " + gap);
  }
}

}  // namespace lockstep::proof
