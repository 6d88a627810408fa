#include "proof/symbolic_computation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/ensure.h"
#include "layout/norm_chunks.h"
#include "program/instruction_rules.h"
#include "program/regions.h"

namespace lockstep::proof {
namespace {

void load(SymbolicMachine& machine, const Place& at) {
  for (const program::Operand& operand : machine.instruction(at).operands) {
    int value = operand.role == program::Role::temporary ? Expressions::kNothing : Expressions::kOther;
    // Ranks read some of the inputs: which one is told by its index alone.
    if (operand.role == program::Role::batch)
      value = machine.expressions().activation(machine.signature_of(at, operand, operand.index), false,
                                               extent_of(operand), machine.atom(at, 0),
                                               fmt::format("model input {}", operand.index));
    machine.memory(at.rank).write(operand.range, value, operand.dtype);
  }
}

/// Adds one micro-batch to a `gradients` operand of a backward.
class BucketWriter {
 public:
  BucketWriter(SymbolicMachine& machine, const Place& at, const program::Operand& operand)
      : machine_(machine),
        at_(at),
        operand_(operand),
        width_(size_of(operand.dtype)),
        begin_(operand.position),
        end_(begin_ + operand.range.size_bytes * 4 / width_) {}

  void write() {
    const int segment = machine_.instruction(at_).segment;
    const int padding = kPaddingParameter - segment;
    int64_t done = 0;
    for (const ProgramWorld::BucketUse& use : machine_.world().bucket(segment)) {
      if (use.begin == program::kNoGradient) continue;
      contribute(done, use.begin, padding, 0, std::max(done, begin_));
      contribute(use.begin, use.end, use.parameter, use.use, std::max(begin_ - use.begin, int64_t{0}));
      done = use.end;
    }
    contribute(done, end_, padding, 0, std::max(done, begin_));
    machine_.memory(at_.rank).write(operand_.range, result_);
  }

 private:
  /// To bytes `from` to `to` of the bucket, as far as the operand covers them.
  void contribute(int64_t from, int64_t to, int parameter, int use, int64_t position) {
    from = std::max(from, begin_);
    to = std::min(to, end_);
    if (from >= to) return;
    Piece part{(from - begin_) * width_ / 4,
               (to - begin_) * width_ / 4,
               Expressions::kNothing,
               parameter,
               position,
               operand_.dtype};
    if (operand_.access == program::Access::write) {
      part.expression = machine_.gradient(at_, use);
      result_.push_back(part);
    } else {
      accumulate(part, machine_.atom(at_, use));
    }
  }

  void accumulate(const Piece& part, const Expressions::Atom& added) {
    program::ByteRange bytes = operand_.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    for (const Piece& old : machine_.memory(at_.rank).read(bytes)) {
      Piece piece = part;
      piece.begin = part.begin + old.begin;
      piece.end = part.begin + old.end;
      piece.position = part.position_at(piece.begin);
      const bool fits =
          old.expression == Expressions::kNothing ||
          (old.parameter == part.parameter && old.position == piece.position && old.dtype == part.dtype);
      piece.expression = fits ? machine_.expressions().chain(old.expression, added)
                              : machine_.expressions().wrong(fmt::format(
                                    "gradient of {} accumulated onto {} of {}", machine_.name_of(piece),
                                    lockstep::name_of(old.dtype), machine_.name_of(old)));
      result_.push_back(piece);
    }
  }

  SymbolicMachine& machine_;
  const Place at_;
  const program::Operand& operand_;
  const int64_t width_;
  const int64_t begin_, end_;  ///< bytes of the bucket that the operand covers
  std::vector<Piece> result_;
};

/// Those of several leaves stand side by side.
void write_metrics(SymbolicMachine& machine, const Place& at, const program::Operand& operand) {
  const int leaves = machine.instruction(at).leaves;
  const int64_t each = operand.range.size_bytes / leaves;
  Expressions::Atom one = machine.atom(at, 0);
  std::vector<Piece> result;
  for (int i = 0; i < leaves; ++i, ++one.leaf)
    result.push_back({i * each, (i + 1) * each, machine.expressions().chain(Expressions::kNothing, one),
                      kMetricsParameter, 0, operand.dtype});
  machine.memory(at.rank).write(operand.range, result);
}

void add_metrics(SymbolicMachine& machine, const Place& at, const program::Operand& operand) {
  if (operand.access == program::Access::write) return write_metrics(machine, at, operand);
  std::vector<Piece> result;
  for (const Piece& old : machine.read(at, operand)) {
    result.push_back({old.begin, old.end, machine.expressions().chain(old.expression, machine.atom(at, 0)),
                      kMetricsParameter, old.begin * 4 / size_of(operand.dtype), operand.dtype});
  }
  machine.memory(at.rank).write(operand.range, result);
}

void segment(SymbolicMachine& machine, const Place& at) {
  const program::Instruction& i = machine.instruction(at);
  std::map<program::Role, int> ordinals;
  for (const program::Operand& operand : i.operands) {
    if (!program::writes(operand.access)) continue;
    // Of several stashes a recomputation may make one.
    const int ordinal = operand.role == program::Role::stash ? operand.index : ordinals[operand.role]++;
    switch (operand.role) {
      case program::Role::gradients:
        BucketWriter(machine, at, operand).write();
        break;
      case program::Role::metrics:
        add_metrics(machine, at, operand);
        break;
      case program::Role::output:
      case program::Role::stash:
      case program::Role::input_gradient: {
        const int made = machine.expressions().activation(
            machine.signature_of(at, operand, ordinal), program::is_backward(i.kind), extent_of(operand),
            machine.atom(at, 0),
            fmt::format("{} {} of segment {}", lockstep::program::name_of(operand.role), ordinal, i.segment));
        machine.memory(at.rank).write(operand.range, made, operand.dtype);
        break;
      }
      default:
        machine.memory(at.rank).write(operand.range, Expressions::kNothing, operand.dtype);
    }
  }
}

/// Of an `add` or `cast`: its destination and its source.
std::pair<const program::Operand&, const program::Operand&> destination_and_source(
    const program::Instruction& i) {
  const auto operand = [&](program::Role role) -> const program::Operand& {
    return *std::ranges::find(i.operands, role, &program::Operand::role);
  };
  return {operand(program::Role::destination), operand(program::Role::source)};
}

int added(SymbolicMachine& machine, const Place& at, const Piece& a, const Piece& b) {
  Expressions& expressions = machine.expressions();
  if (a.expression == Expressions::kNothing || b.expression == Expressions::kNothing)
    return Expressions::kNothing;
  const bool aligned = a.parameter == b.parameter && a.position == b.position && a.dtype == b.dtype;
  if (aligned && expressions.is_gradient_sum(a.expression) && expressions.is_gradient_sum(b.expression))
    return machine.stored(expressions.sum(a.expression, b.expression), a.dtype);
  if (aligned && expressions.are_gradients_of_one_activation(a.expression, b.expression))
    return expressions.sum_of_activation_gradients(a.expression, b.expression);
  return expressions.wrong(fmt::format("the sum of {} ({}) and {} ({})",
                                       expressions.text(a.expression, at.iteration, 1), machine.name_of(a),
                                       expressions.text(b.expression, at.iteration, 1), machine.name_of(b)));
}

void add(SymbolicMachine& machine, const Place& at) {
  const auto [destination, source] = destination_and_source(machine.instruction(at));
  if (destination.dtype != source.dtype) return;  // no sum; the proof of gradients says so
  std::vector<Piece> result;
  align({machine.read(at, destination), machine.read(at, source)},
        [&](int64_t, int64_t, const std::vector<Piece>& both) {
          result.push_back(both[0]);
          result.back().expression = added(machine, at, both[0], both[1]);
        });
  machine.memory(at.rank).write(destination.range, result);
}

/// The same elements in another type.
std::vector<Piece> converted(std::vector<Piece> pieces, DType from, DType to) {
  for (Piece& piece : pieces) {
    piece.begin = piece.begin / size_of(from) * size_of(to);
    piece.end = piece.end / size_of(from) * size_of(to);
    piece.dtype = to;
  }
  return pieces;
}

/// A residual has seen one rounding more. That it belongs to the gradient its proof says.
void add_rounding(SymbolicMachine& machine, const Place& at, const program::Operand& residual) {
  std::vector<Piece> kept = machine.read(at, residual);
  for (Piece& piece : kept) {
    const Expressions::Node& node = machine.expressions().node(piece.expression);
    piece.expression = node.kind == Expressions::Kind::residual
                           ? machine.expressions().residual(node.a + 1, node.atom.use, node.atom.leaf)
                           : Expressions::kOther;
  }
  machine.memory(at.rank).write(residual.range, kept);
}

void cast(SymbolicMachine& machine, const Place& at) {
  if (machine.instruction(at).anew && at.iteration > 0) return;  // something is left of the one before
  const auto [destination, source] = destination_and_source(machine.instruction(at));
  for (const program::Operand& operand : machine.instruction(at).operands)
    if (operand.role == program::Role::residual) add_rounding(machine, at, operand);
  std::vector<Piece> copied = converted(machine.read(at, source), source.dtype, destination.dtype);
  for (Piece& piece : copied)
    piece.expression = machine.converted(piece.expression, source.dtype, destination.dtype);
  machine.memory(at.rank).write(destination.range, copied);
}

/// What an operand of a sum of squares holds of gradients that are final, or of parameters.
void add_coverage(SymbolicMachine& machine, const Place& at, const program::Operand& operand,
                  std::vector<Expressions::Coverage>& list) {
  const bool of_gradients = operand.role == program::Role::gradients;
  for (const Piece& piece : machine.read(at, operand))
    if (piece.parameter >= 0 &&
        (of_gradients ? machine.is_final_gradient(at, piece)
                      : machine.expressions().node(piece.expression).kind == Expressions::Kind::parameter))
      list.push_back({piece.parameter, piece.position, piece.position_at(piece.end)});
}

/// Of the operands `chunks` with this index: squares of these and nothing else.
Expressions::Facts facts_of_sums(SymbolicMachine& machine, const Place& at, layout::Measured measured) {
  Expressions::Facts facts;
  for (const program::Operand& operand : machine.instruction(at).operands) {
    if (operand.role == program::Role::gradients && measured == layout::Measured::gradients)
      add_coverage(machine, at, operand, facts.norm);
    if (operand.role == program::Role::parameters && measured != layout::Measured::gradients)
      add_coverage(machine, at, operand,
                   measured == layout::Measured::parameters ? facts.parameters : facts.updates);
  }
  return facts;
}

/// Scales follow from sums alone. The verdict that they obey has a norm, too, but says nothing of them.
Expressions::Facts facts_of_scales(SymbolicMachine& machine, const Place& at) {
  std::set<int> seen;
  Expressions::Facts facts;
  for (const program::Operand& operand : machine.instruction(at).operands)
    if (operand.role == program::Role::chunks)
      for (const Piece& piece : machine.read(at, operand))
        machine.expressions().merge_facts(piece.expression, seen, facts);
  return facts;
}

/// Of what an instruction makes of everything that it reads: sums of others, and its own of gradients.
Expressions::Facts facts_of_all(SymbolicMachine& machine, const Place& at) {
  std::set<int> seen;
  Expressions::Facts facts;
  for (const program::Operand& operand : machine.instruction(at).operands) {
    if (operand.role == program::Role::gradients)
      add_coverage(machine, at, operand, facts.norm);
    else if (program::reads(operand.access) && operand.role != program::Role::parameters)
      for (const Piece& piece : machine.read(at, operand))
        machine.expressions().merge_facts(piece.expression, seen, facts);
  }
  return facts;
}

/// A `norm`, `propose` or `ratios`.
void measure(SymbolicMachine& machine, const Place& at) {
  std::vector<std::pair<const program::Operand*, int>> written;
  for (const program::Operand& operand : machine.instruction(at).operands) {
    if (!program::writes(operand.access)) continue;
    int made = Expressions::kNothing;
    if (operand.role == program::Role::state)
      made = machine.expressions().state(at.iteration + 1);
    else if (operand.role == program::Role::chunks)
      made = machine.expressions().facts(
          at.iteration, facts_of_sums(machine, at, static_cast<layout::Measured>(operand.index)));
    else if (operand.role == program::Role::scales)
      made = machine.expressions().facts(at.iteration, facts_of_scales(machine, at));
    else if (operand.role != program::Role::temporary)
      made = machine.expressions().facts(at.iteration, facts_of_all(machine, at));
    written.emplace_back(&operand, made);
  }
  for (const auto& [operand, made] : written)
    machine.memory(at.rank).write(operand->range, made, operand->dtype);
}

void update(SymbolicMachine& machine, const Place& at) {
  SymbolicMemory& memory = machine.memory(at.rank);
  const std::vector<program::Operand>& operands = machine.instruction(at).operands;
  const auto copy = std::ranges::find(operands, program::Role::destination, &program::Operand::role);
  for (const program::Operand& operand : operands) {
    if (operand.role == program::Role::state && program::writes(operand.access))
      memory.write(operand.range, machine.expressions().state(at.iteration + 1), operand.dtype);
    if (operand.role == program::Role::temporary)
      memory.write(operand.range, Expressions::kNothing, operand.dtype);
    if (operand.role != program::Role::parameters) continue;
    for (const HeldRun& part : machine.held().in(at.rank, operand.range)) {
      program::ByteRange bytes = operand.range;
      bytes.offset += part.begin;
      bytes.size_bytes = part.end - part.begin;
      std::vector<Piece> updated = machine.read(at, bytes, operand.dtype);
      for (Piece& piece : updated) piece.expression = machine.expressions().parameter(at.iteration + 1);
      memory.write(bytes, updated);
      if (copy == operands.end() || operand.dtype != DType::float32) continue;
      const int64_t width = size_of(copy->dtype);
      memory.write({copy->range.buffer, copy->range.offset + part.begin / 4 * width,
                    (part.end - part.begin) / 4 * width},
                   converted(std::move(updated), operand.dtype, copy->dtype));
    }
  }
}

/// What it writes is read by nothing that a proof is about.
void write_unknown(SymbolicMachine& machine, const Place& at) {
  for (const program::Operand& operand : machine.instruction(at).operands)
    if (program::writes(operand.access))
      machine.memory(at.rank).write(operand.range, Expressions::kOther, operand.dtype);
}

}  // namespace

void compute(SymbolicMachine& machine, const Place& at) {
  switch (machine.instruction(at).kind) {
    case program::InstructionKind::load:
      return load(machine, at);
    case program::InstructionKind::forward:
    case program::InstructionKind::recompute:
    case program::InstructionKind::backward:
    case program::InstructionKind::backward_input:
    case program::InstructionKind::backward_weight:
      return segment(machine, at);
    case program::InstructionKind::add:
      return add(machine, at);
    case program::InstructionKind::cast:
      return cast(machine, at);
    case program::InstructionKind::norm:
    case program::InstructionKind::propose:
    case program::InstructionKind::ratios:
      return measure(machine, at);
    case program::InstructionKind::update:
      return update(machine, at);
    case program::InstructionKind::constants:
    case program::InstructionKind::digest:
    case program::InstructionKind::snapshot:
      return write_unknown(machine, at);
    default:
      ensure(false, fmt::format("the proofs do not know what '{}' computes",
                                program::name_of(machine.instruction(at).kind)));
  }
}

}  // namespace lockstep::proof
