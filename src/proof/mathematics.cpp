#include "proof/mathematics.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/index.h"
#include "program/instruction_rules.h"
#include "program/regions.h"

namespace lockstep::proof {
namespace {

uint64_t producer(std::string_view what, int segment, int ordinal) {
  return hash_combine(hash_combine(hash64(what), static_cast<uint64_t>(segment)),
                      static_cast<uint64_t>(ordinal));
}

constexpr int kCount = -1;  ///< in place of an ordinal: how many there are

/// All bytes of an activation, counted as positions are.
int64_t extent_of(const program::Operand& operand) {
  return operand.range.size_bytes * 4 / size_of(operand.dtype);
}

}  // namespace

Mathematics::Mathematics(const ProgramWorld& world, Findings& findings)
    : world_(world), findings_(findings), expressions_(world.leaves(), world.micro_batches_per_leaf()) {
  for (int rank = 0; rank < world.size(); ++rank) memories_.emplace_back(world.program(rank));
  enter_initial_contents();
}

void Mathematics::fail(const Place& at, const std::string& tag, const std::string& what) {
  if (reported_.insert({at.rank, at.index, tag}).second)
    findings_.add(CheckFinding::Property::mathematics, at.rank, at.index, what);
}

std::string Mathematics::name_of(const Piece& piece) const {
  if (piece.parameter >= 0)
    return fmt::format("byte {} of '{}'", piece.position, nth(world_.parameters(), piece.parameter).name);
  return piece.parameter == kMetricsParameter ? "metrics"
                                              : fmt::format("byte {} of something else", piece.position);
}

std::vector<Mathematics::HeldPart> Mathematics::held_in(int rank, const program::ByteRange& range) const {
  const program::Program& program = world_.program(rank);
  std::vector<HeldPart> parts;
  for (size_t p = 0; p < program.parameters.size(); ++p) {
    const program::ParameterPlace& place = program.parameters[p];
    if (place.buffer != range.buffer) continue;
    const int64_t begin = std::max(place.offset, range.offset);
    const int64_t end = std::min(place.offset + place.size_bytes, range.offset + range.size_bytes);
    if (begin < end)
      parts.push_back({world_.parameter_of_place(rank, p), begin - range.offset, end - range.offset,
                       begin - place.offset});
  }
  return parts;
}

std::vector<Mathematics::HeldPart> Mathematics::copies_in(int rank, const program::ByteRange& range,
                                                          DType dtype) const {
  const program::Program& program = world_.program(rank);
  std::vector<HeldPart> parts;
  for (size_t p = 0; p < program.parameters.size(); ++p) {
    const program::ParameterPlace& place = program.parameters[p];
    if (place.narrow_buffer != range.buffer) continue;
    const int64_t size_bytes = place.size_bytes / 4 * size_of(dtype);
    const int64_t begin = std::max(place.narrow_offset, range.offset);
    const int64_t end = std::min(place.narrow_offset + size_bytes, range.offset + range.size_bytes);
    if (begin < end)
      parts.push_back({world_.parameter_of_place(rank, p), begin - range.offset, end - range.offset,
                       (begin - place.narrow_offset) * 4 / size_of(dtype)});
  }
  return parts;
}

std::vector<Piece> Mathematics::read(const Place& at, const program::ByteRange& range, DType dtype) {
  std::vector<Piece> pieces = memory(at.rank).read(range);
  for (Piece& piece : pieces)
    if (piece.dtype != dtype && piece.expression != Expressions::kNothing &&
        piece.expression != Expressions::kOther)
      piece.expression = expressions_.wrong(fmt::format(
          "{} in elements of {}, read as {}", expressions_.text(piece.expression, at.iteration, 1),
          lockstep::name_of(piece.dtype), lockstep::name_of(dtype)));
  return pieces;
}

void Mathematics::enter_initial_contents() {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const program::Program& program = world_.program(rank);
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const program::ByteRange whole = program.whole(static_cast<int>(b));
      const auto held = held_in(rank, whole);
      if (program.buffers[b].space == program::Space::optimizer)
        memory(rank).write(whole, expressions_.state(0), DType::float32);
      if (held.empty()) continue;
      memory(rank).write(whole, Expressions::kOther, DType::float32);
      for (const HeldPart& part : held)
        memory(rank).write(whole, {{part.begin, part.end, expressions_.parameter(0), part.parameter,
                                    part.position, DType::float32}});
    }
  }
}

void Mathematics::local(const Place& at) {
  switch (instruction(at).kind) {
    case program::InstructionKind::load:
      return load(at);
    case program::InstructionKind::forward:
    case program::InstructionKind::recompute:
    case program::InstructionKind::backward:
    case program::InstructionKind::backward_input:
    case program::InstructionKind::backward_weight:
      return segment(at);
    case program::InstructionKind::add:
      return add(at);
    case program::InstructionKind::cast:
      return cast(at);
    case program::InstructionKind::norm:
    case program::InstructionKind::finite:
      return norm_or_finite(at);
    case program::InstructionKind::update:
      return update(at);
    case program::InstructionKind::digest:
    case program::InstructionKind::snapshot:
      for (const program::Operand& operand : instruction(at).operands) {
        if (operand.role == program::Role::parameters) check_parameters(at, operand);
        if (program::writes(operand.access))
          memory(at.rank).write(operand.range, Expressions::kOther, operand.dtype);
      }
      return;
    default:
      return;
  }
}

void Mathematics::load(const Place& at) {
  int ordinal = 0;
  for (const program::Operand& operand : instruction(at).operands) {
    int value = Expressions::kOther;
    if (operand.role == program::Role::batch) {
      value = expressions_.activation(producer("batch", 0, ordinal), false, extent_of(operand), atom(at, 0),
                                      fmt::format("model input {}", ordinal));
      ++ordinal;
    }
    memory(at.rank).write(operand.range, value, operand.dtype);
  }
}

void Mathematics::segment(const Place& at) {
  check_what_segment_reads(at);
  write_results(at);
}

void Mathematics::check_what_segment_reads(const Place& at) {
  const program::Instruction& i = instruction(at);
  std::map<program::Role, int> ordinals;
  for (const program::Operand& operand : i.operands) {
    if (!program::reads(operand.access)) {
      continue;
    } else if (operand.role == program::Role::parameters) {
      check_parameters(at, operand);
    } else if (operand.role == program::Role::input || operand.role == program::Role::output ||
               operand.role == program::Role::stash || operand.role == program::Role::output_gradient) {
      check_activation(at, operand, ordinals[operand.role]++);
    }
  }
  check_use_of_parameters(at);
  check_has_a_gradient(at, ordinals[program::Role::output_gradient]);
  for (const program::Role role :
       {program::Role::input, program::Role::output, program::Role::stash, program::Role::output_gradient}) {
    const auto count = static_cast<uint64_t>(ordinals[role]);
    const auto [known, is_new] = producers_.emplace(
        std::tuple(static_cast<int>(i.kind), i.segment, static_cast<int>(role), kCount), count);
    if (!is_new && known->second != count)
      fail(at, "count",
           fmt::format("it reads {} operands {}; other micro-batches or ranks read {}", count,
                       lockstep::program::name_of(role), known->second));
  }
}

void Mathematics::write_results(const Place& at) {
  const program::Instruction& i = instruction(at);
  std::map<program::Role, int> ordinals;
  for (const program::Operand& operand : i.operands) {
    if (!program::writes(operand.access)) continue;
    const int ordinal = ordinals[operand.role]++;
    const std::string_view role = lockstep::program::name_of(operand.role);
    switch (operand.role) {
      case program::Role::gradients:
        write_gradients(at, operand);
        break;
      case program::Role::metrics:
        add_metrics(at, operand);
        break;
      case program::Role::output:
      case program::Role::stash:
      case program::Role::input_gradient: {
        // A recomputation makes the same values as forward; what backward_input leaves for backward_weight is
        // new.
        const bool is_gradient = program::is_backward(i.kind);
        const int made = expressions_.activation(
            producer(role, is_gradient ? -1 - i.segment : i.segment, ordinal), is_gradient,
            extent_of(operand), atom(at, 0), fmt::format("{} {} of segment {}", role, ordinal, i.segment));
        if (operand.role == program::Role::input_gradient)
          computed_gradients_.try_emplace(expressions_.node(made).signature, at,
                                          proof::describe(program(at), operand.range));
        memory(at.rank).write(operand.range, made, operand.dtype);
        break;
      }
      default:
        memory(at.rank).write(operand.range, Expressions::kNothing, operand.dtype);
    }
  }
}

void Mathematics::check_parameters(const Place& at, const program::Operand& operand) {
  auto sorted = held_in(at.rank, operand.range);
  if (operand.dtype != DType::float32) sorted = copies_in(at.rank, operand.range, operand.dtype);
  size_t next = 0;
  std::sort(sorted.begin(), sorted.end(),
            [](const HeldPart& a, const HeldPart& b) { return a.begin < b.begin; });
  for (const Piece& piece : read(at, operand)) {
    while (next < sorted.size() && sorted[next].end <= piece.begin) ++next;
    const HeldPart* part = next < sorted.size() && sorted[next].begin < piece.end ? &sorted[next] : nullptr;
    if (piece.expression == Expressions::kNothing) continue;
    if (piece.expression == Expressions::kOther && part == nullptr) continue;
    const auto& node = expressions_.node(piece.expression);
    const auto wrong = [&](const std::string& wanted, const std::string& found) {
      fail(at, "parameters",
           fmt::format("in its parameters {}, {} belongs, and there is {}",
                       proof::describe(program(at), operand.range), wanted, found));
    };
    if (node.kind != Expressions::Kind::parameter) {
      wrong(part != nullptr ? fmt::format("'{}'", nth(world_.parameters(), part->parameter).name)
                            : "a parameter",
            expressions_.text(piece.expression, at.iteration, 1));
      continue;
    }
    const auto& parameter = nth(world_.parameters(), piece.parameter);
    const int version = parameter.trained ? at.iteration : 0;
    if (node.a != Expressions::kPulled && node.a != version)
      wrong(fmt::format("'{}' after {} updates", parameter.name, version),
            expressions_.text(piece.expression, at.iteration, 1));
    if (part != nullptr) {
      const int64_t begin = std::max(piece.begin, part->begin);
      const int64_t expected = part->position + (begin - part->begin) * 4 / size_of(operand.dtype);
      if (piece.parameter != part->parameter || piece.position_at(begin) != expected)
        wrong(fmt::format("byte {} of '{}'", expected, nth(world_.parameters(), part->parameter).name),
              name_of(piece));
    }
  }
}

/// Which of its parameters an operand holds is up to the program; together they are those that the segment
/// uses, whole.
void Mathematics::check_use_of_parameters(const Place& at) {
  const program::Instruction& i = instruction(at);
  std::set<int> used;
  for (const ProgramWorld::BucketUse& use : world_.bucket(i.segment)) used.insert(use.parameter);
  std::vector<Coverage> read_here;
  for (const program::Operand& operand : i.operands) {
    if (operand.role != program::Role::parameters) continue;
    bool holds_used = false;
    for (const Piece& piece : read(at, operand)) {
      if (piece.expression == Expressions::kNothing) return;  // the data check's business
      if (expressions_.node(piece.expression).kind != Expressions::Kind::parameter) continue;
      holds_used = holds_used || used.contains(piece.parameter);
      read_here.push_back({piece.parameter, piece.position, piece.position_at(piece.end)});
    }
    if (!holds_used)
      fail(at, "unused parameters",
           fmt::format("segment {} uses no parameter in {}", i.segment,
                       proof::describe(program(at), operand.range)));
  }
  if (i.kind == program::InstructionKind::backward_weight) return;  // products of activations may do without
  std::sort(read_here.begin(), read_here.end());
  for (const int parameter : used) {
    const ModelParameter& model = nth(world_.parameters(), parameter);
    int64_t done = 0;
    for (const Coverage& bytes : read_here)
      if (bytes.parameter == parameter && bytes.begin <= done) done = std::max(done, bytes.end);
    if (done < model.size_bytes)
      fail(at, "missing parameters",
           fmt::format("segment {} uses '{}', and its operands lack it from byte {}", i.segment, model.name,
                       done));
  }
}

void Mathematics::write_gradients(const Place& at, const program::Operand& operand) {
  const program::Instruction& i = instruction(at);
  const int64_t width = size_of(operand.dtype);
  const int64_t begin = operand.position, end = begin + operand.range.size_bytes * 4 / width;
  std::vector<Piece> result;
  const auto contribute = [&](int64_t from, int64_t to, int parameter, int use, int64_t position) {
    from = std::max(from, begin);
    to = std::min(to, end);
    if (from >= to) return;
    const Piece part{(from - begin) * width / 4,
                     (to - begin) * width / 4,
                     Expressions::kNothing,
                     parameter,
                     position,
                     operand.dtype};
    if (operand.access == program::Access::write) {
      result.push_back(part);
      result.back().expression = expressions_.chain(Expressions::kNothing, atom(at, use));
      return;
    }
    program::ByteRange bytes = operand.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    for (const Piece& old : memory(at.rank).read(bytes)) {
      Piece piece{part.begin + old.begin,
                  part.begin + old.end,
                  0,
                  parameter,
                  part.position_at(part.begin + old.begin),
                  operand.dtype};
      const bool fits =
          old.expression == Expressions::kNothing ||
          (old.parameter == parameter && old.position == piece.position && old.dtype == operand.dtype);
      piece.expression =
          fits ? expressions_.chain(old.expression, atom(at, use))
               : expressions_.wrong(fmt::format("gradient of {} accumulated onto {} of {}", name_of(piece),
                                                lockstep::name_of(old.dtype), name_of(old)));
      result.push_back(piece);
    }
  };
  int64_t done = 0;
  for (const ProgramWorld::BucketUse& use : world_.bucket(i.segment)) {
    contribute(done, use.begin, kPaddingParameter - i.segment, 0, std::max(done, begin));
    contribute(use.begin, use.end, use.parameter, use.use, std::max(begin - use.begin, int64_t{0}));
    done = use.end;
  }
  contribute(done, end, kPaddingParameter - i.segment, 0, std::max(done, begin));
  memory(at.rank).write(operand.range, result);
}

void Mathematics::add_metrics(const Place& at, const program::Operand& operand) {
  std::vector<Piece> result;
  for (const Piece& old : read(at, operand)) {
    const int previous = operand.access == program::Access::write ? Expressions::kNothing : old.expression;
    result.push_back({old.begin, old.end, expressions_.chain(previous, atom(at, 0)), kMetricsParameter,
                      old.begin * 4 / size_of(operand.dtype), operand.dtype});
  }
  memory(at.rank).write(operand.range, result);
}

void Mathematics::add(const Place& at) {
  const program::Instruction& i = instruction(at);
  const program::Operand& destination = i.operands[i.operands[0].role == program::Role::destination ? 0 : 1];
  const program::Operand& source = i.operands[i.operands[0].role == program::Role::destination ? 1 : 0];
  if (destination.dtype != source.dtype)
    return fail(at, "dtype",
                fmt::format("it adds {} to {}; cast one of them first", lockstep::name_of(source.dtype),
                            lockstep::name_of(destination.dtype)));
  std::vector<Piece> result;
  align({read(at, destination), read(at, source)}, [&](int64_t, int64_t, const std::vector<Piece>& both) {
    result.push_back(added(at, both[0], both[1]));
  });
  memory(at.rank).write(destination.range, result);
}

Piece Mathematics::added(const Place& at, const Piece& a, const Piece& b) {
  Piece piece = a;
  if (a.expression == Expressions::kNothing || b.expression == Expressions::kNothing) {
    piece.expression = Expressions::kNothing;
    return piece;
  }
  const bool aligned = a.parameter == b.parameter && a.position == b.position && a.dtype == b.dtype;
  const auto &x = expressions_.node(a.expression), &y = expressions_.node(b.expression);
  if (aligned && expressions_.is_gradient_sum(a.expression) && expressions_.is_gradient_sum(b.expression)) {
    piece.expression = expressions_.sum(a.expression, b.expression);
  } else if (aligned && x.kind == Expressions::Kind::activation && y.kind == Expressions::Kind::activation &&
             x.is_gradient && y.is_gradient && x.atom == y.atom && x.extent == y.extent) {
    const auto [low, high] = std::minmax(x.signature, y.signature);
    const Atom both = x.atom;
    std::set<uint64_t> terms;
    for (const uint64_t part : {low, high}) {
      const auto sum = summed_gradients_.find(part);
      if (sum == summed_gradients_.end()) {
        terms.insert(part);
      } else {
        terms.insert(sum->second.begin(), sum->second.end());
      }
    }
    piece.expression =
        expressions_.activation(hash_combine(low, high), true, x.extent, both, x.text + " plus " + y.text);
    summed_gradients_.try_emplace(expressions_.node(piece.expression).signature, std::move(terms));
  } else {
    piece.expression = expressions_.wrong(
        fmt::format("the sum of {} ({}) and {} ({})", expressions_.text(a.expression, at.iteration, 1),
                    name_of(a), expressions_.text(b.expression, at.iteration, 1), name_of(b)));
  }
  return piece;
}

void Mathematics::cast(const Place& at) {
  const program::Instruction& i = instruction(at);
  const program::Operand& destination = i.operands[i.operands[0].role == program::Role::destination ? 0 : 1];
  const program::Operand& source = i.operands[i.operands[0].role == program::Role::destination ? 1 : 0];
  const int64_t from = size_of(source.dtype), to = size_of(destination.dtype);
  std::vector<Piece> result = read(at, source);
  for (Piece& piece : result) {
    piece.begin = piece.begin / from * to;
    piece.end = piece.end / from * to;
    piece.dtype = destination.dtype;
  }
  memory(at.rank).write(destination.range, result);
}

}  // namespace lockstep::proof
