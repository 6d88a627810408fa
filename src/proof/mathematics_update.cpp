#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "base/text.h"
#include "program/regions.h"
#include "proof/mathematics.h"

namespace lockstep::proof {

bool Mathematics::check_final(const Place& at, const Piece& piece) {
  if (piece.parameter <= kPaddingParameter) return true;  // gaps of a bucket
  if (piece.parameter < 0) {
    fail(at, "gradient",
         fmt::format("gradients belong there, and there is {}",
                     expressions_.text(piece.expression, at.iteration, 1)));
    return false;
  }
  const ModelParameter& parameter = nth(world_.parameters(), piece.parameter);
  const int uses = static_cast<int>(parameter.uses.size());
  const auto report = [&](const std::string& wanted) {
    fail(at, "gradient",
         fmt::format("the gradient of '{}' should be {}, and what arrives is {}", parameter.name, wanted,
                     expressions_.text(piece.expression, at.iteration, uses)));
    return false;
  };
  const int canonical = expressions_.canonical(at.iteration, uses);
  if (world_.reduction() == layout::Reduction::reproducible)
    return piece.expression == canonical || report(expressions_.text(canonical, at.iteration, uses));
  if (!expressions_.is_gradient_sum(piece.expression)) return report("the sum of all leaves");
  return expressions_.is_complete(piece.expression, at.iteration, uses) ||
         report(fmt::format("the sum of all leaves ({})",
                            difference(expressions_.atoms(piece.expression),
                                       expressions_.complete_atoms(at.iteration, uses), uses)));
}

void Mathematics::update(const Place& at) {
  const program::Instruction& i = instruction(at);
  const program::Operand *parameters = nullptr, *gradients = nullptr;
  for (const program::Operand& operand : i.operands) {
    if (operand.role == program::Role::parameters) parameters = &operand;
    if (operand.role == program::Role::gradients) gradients = &operand;
    if (operand.role == program::Role::state) update_state(at, operand);
    if (operand.role == program::Role::verdict || operand.role == program::Role::predicate)
      check_verdict(at, operand);
    if (operand.role == program::Role::temporary)
      memory(at.rank).write(operand.range, Expressions::kNothing, operand.dtype);
  }
  check_obeys_the_same(at);
  update_parameters(at, *parameters, *gradients);
}

void Mathematics::update_parameters(const Place& at, const program::Operand& parameters,
                                    const program::Operand& gradients) {
  const int64_t parameter_width = size_of(parameters.dtype), gradient_width = size_of(gradients.dtype);
  const auto held = held_in(at.rank, parameters.range);
  if (held.empty())
    fail(at, "held",
         fmt::format("no parameter of this rank lies in {}", proof::describe(program(at), parameters.range)));
  for (const HeldPart& part : held) {
    const std::string& name = nth(world_.parameters(), part.parameter).name;
    program::ByteRange bytes = gradients.range;
    bytes.offset += part.begin / parameter_width * gradient_width;
    bytes.size_bytes = (part.end - part.begin) / parameter_width * gradient_width;
    for (const Piece& piece : read(at, bytes, gradients.dtype)) {
      if (piece.expression == Expressions::kNothing) continue;  // the data check's business
      const int64_t expected = part.position + piece.begin * 4 / gradient_width;
      if (!check_final(at, piece)) continue;
      if (piece.parameter != part.parameter || piece.position != expected)
        fail(at, "place",
             fmt::format("byte {} of '{}' meets the gradient of {}", expected, name, name_of(piece)));
    }
    bytes = parameters.range;
    bytes.offset += part.begin;
    bytes.size_bytes = part.end - part.begin;
    std::vector<Piece> updated = read(at, bytes, parameters.dtype);
    for (Piece& piece : updated) {
      const auto& node = expressions_.node(piece.expression);
      if (node.kind != Expressions::Kind::parameter || node.a != at.iteration)
        fail(at, "version",
             node.kind == Expressions::Kind::parameter && node.a == at.iteration + 1
                 ? fmt::format("'{}' is updated for a second time in one step", name)
                 : fmt::format("'{}' should be there after {} updates, and there is {}", name, at.iteration,
                               expressions_.text(piece.expression, at.iteration, 1)));
      piece.expression = expressions_.parameter(at.iteration + 1);
    }
    memory(at.rank).write(bytes, updated);
    updated_[at.iteration].push_back({part.parameter, part.position, part.position + part.end - part.begin});
    check_owned(at, part);
  }
}

/// What a rank updates is what its program says that it owns, with the state that its program says belongs to
/// it.
void Mathematics::check_owned(const Place& at, const HeldPart& part) {
  const program::Instruction& i = instruction(at);
  const auto& places = program(at).parameters;
  size_t p = 0;
  while (world_.parameter_of_place(at.rank, p) != part.parameter) ++p;
  const program::ParameterPlace& place = places[p];
  const int64_t end = part.position + part.end - part.begin;
  if (part.position < place.owned_begin || end > place.owned_end)
    fail(at, "owned",
         fmt::format("it updates bytes {} to {} of '{}', and this rank owns {} to {}", part.position, end,
                     place.name, place.owned_begin, place.owned_end));
  updated_bytes_[{at.rank, at.iteration}] += end - part.position;
  const program::Operand *parameters = nullptr, *state = nullptr;
  for (const program::Operand& operand : i.operands) {
    if (operand.role == program::Role::parameters) parameters = &operand;
    if (operand.role == program::Role::state) state = &operand;
  }
  const int64_t state_bytes = state == nullptr ? 0 : state->range.size_bytes;
  if (state_bytes != static_cast<int64_t>(place.states.size()) * parameters->range.size_bytes)
    return fail(at, "state slots",
                fmt::format("it has {} bytes of optimizer state for {} of parameters, and the program says "
                            "where {} slots of '{}' lie",
                            state_bytes, parameters->range.size_bytes, place.states.size(), place.name));
  for (size_t slot = 0; slot < place.states.size(); ++slot) {
    const int64_t found =
        state->range.offset + static_cast<int64_t>(slot) * parameters->range.size_bytes + part.begin;
    const program::ParameterPlace::State& expected = place.states[slot];
    if (expected.buffer != state->range.buffer || expected.offset + part.position != found)
      fail(at, "state place",
           fmt::format("its state {} of byte {} of '{}' is byte {} of {}; the program says byte {} of {}",
                       slot, part.position, place.name, found,
                       nth(program(at).buffers, state->range.buffer).name, expected.offset + part.position,
                       nth(program(at).buffers, expected.buffer).name));
  }
}

void Mathematics::check_all_owned_updated(int iteration) {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const auto updated = updated_bytes_.find({rank, iteration});
    if (updated == updated_bytes_.end()) continue;  // a server, or a program that updates nothing
    int64_t owned = 0;
    for (const program::ParameterPlace& place : world_.program(rank).parameters)
      owned += place.owned_end - place.owned_begin;
    if (updated->second != owned && reported_.insert({rank, -1, "owned"}).second)
      findings_.add(CheckFinding::Property::mathematics, rank, -1,
                    fmt::format("it updates {} bytes in a step, and owns {}", updated->second, owned));
  }
}

void Mathematics::update_state(const Place& at, const program::Operand& state) {
  for (const Piece& piece : read(at, state)) {
    const auto& node = expressions_.node(piece.expression);
    if (node.kind == Expressions::Kind::state && node.a != at.iteration)
      fail(at, "state",
           fmt::format("optimizer state {} has seen {} updates, expected {}: two updates share it, or one "
                       "is missing",
                       proof::describe(program(at), state.range), node.a, at.iteration));
  }
  memory(at.rank).write(state.range, expressions_.state(at.iteration + 1), state.dtype);
}

std::string Mathematics::missing(const std::vector<Coverage>& coverage, bool once) const {
  std::vector<Coverage> sorted = coverage;
  std::sort(sorted.begin(), sorted.end());
  size_t at = 0;
  for (size_t p = 0; p < world_.parameters().size(); ++p) {
    const ModelParameter& parameter = world_.parameters()[p];
    int64_t done = 0;
    for (; at < sorted.size() && sorted[at].parameter == static_cast<int>(p); ++at) {
      if (sorted[at].begin > done) break;
      if (once && sorted[at].begin < done)
        return fmt::format("'{}' twice from byte {}", parameter.name, sorted[at].begin);
      done = std::max(done, sorted[at].end);
    }
    if (done < parameter.size_bytes) return fmt::format("not '{}' from byte {}", parameter.name, done);
  }
  return "";
}

void Mathematics::check_verdict(const Place& at, const program::Operand& operand) {
  for (const Piece& piece : read(at, operand)) {
    if (piece.expression == Expressions::kNothing) continue;
    const auto& node = expressions_.node(piece.expression);
    if (node.kind != Expressions::Kind::facts) {
      fail(at, "verdict",
           fmt::format("its {} is {}", lockstep::program::name_of(operand.role),
                       expressions_.text(piece.expression, at.iteration, 1)));
      continue;
    }
    if (node.iteration != at.iteration)
      fail(at, "verdict",
           fmt::format("its {} is of an earlier step", lockstep::program::name_of(operand.role)));
    const bool is_flag = operand.role == program::Role::predicate;
    if (!is_flag && !node.facts.counted)
      fail(at, "counted", "its verdict should have counted the metrics of every leaf; it has seen none");
    auto [known, is_new] = missing_.try_emplace({piece.expression, is_flag});
    if (is_new) {
      if (!node.facts.norm.empty()) known->second = missing(node.facts.norm, true);
      if (node.facts.norm.empty() && is_flag) known->second = missing(node.facts.finite, false);
    }
    if (!known->second.empty())
      fail(at, "coverage",
           fmt::format("its {} should have seen every gradient{}; it has seen {}",
                       lockstep::program::name_of(operand.role), node.facts.norm.empty() ? "" : " once",
                       known->second));
  }
}

std::vector<Mathematics::Obeyed> Mathematics::obeyed_by(const Place& at) {
  std::vector<Obeyed> list;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role != program::Role::verdict && operand.role != program::Role::predicate) continue;
    for (const Piece& piece : read(at, operand)) {
      const auto& facts = expressions_.node(piece.expression).facts;
      list.push_back({operand.role, operand.index, piece.position, piece.end - piece.begin,
                      !facts.norm.empty(), !facts.finite.empty()});
    }
  }
  std::sort(list.begin(), list.end());
  return list;
}

/// Replicas stay equal, and a step is taken as a whole, where every update is held to the same conditions.
/// That a verdict or flag has seen everything is another check's business.
void Mathematics::check_obeys_the_same(const Place& at) {
  const auto own = obeyed_by(at);
  const auto [known, is_new] = obeyed_.try_emplace(at.iteration, Obedience{at, own});
  if (is_new || known->second.what == own) return;
  const auto text = [](const std::vector<Obeyed>& list) {
    std::vector<std::string> parts;
    for (const Obeyed& one : list)
      parts.push_back(fmt::format("{}.{} (bytes {}+{} of {})", lockstep::program::name_of(one.role),
                                  one.index, one.position, one.size_bytes,
                                  one.has_norm   ? "a norm's verdict"
                                  : one.has_flag ? "an agreement on a flag"
                                                 : "an agreement"));
    return parts.empty() ? "nothing" : join(parts, ", ");
  };
  const Place& first = known->second.by;
  fail(at, "obeys",
       fmt::format("it obeys {}; rank {}, {}, obeys {}; all updates of a step must obey the same", text(own),
                   first.rank, lockstep::program::describe(program(first), first.index),
                   text(known->second.what)));
}

void Mathematics::check_flags_obeyed(int iteration) {
  const auto flag = flags_.find(iteration);
  const auto updates = obeyed_.find(iteration);
  if (flag == flags_.end() || updates == obeyed_.end()) return;
  for (const Obeyed& one : updates->second.what)
    if (one.role == program::Role::predicate && one.has_flag) return;
  fail(updates->second.by, "flag",
       fmt::format("it does not obey the flag of rank {}, {}: its predicate must", flag->second.rank,
                   lockstep::program::describe(program(flag->second), flag->second.index)));
}

void Mathematics::merge_facts(const std::vector<Piece>& pieces, std::set<int>& seen,
                              Expressions::Facts& facts) const {
  for (const Piece& piece : pieces) {
    const auto& node = expressions_.node(piece.expression);
    if (node.kind != Expressions::Kind::facts || !seen.insert(piece.expression).second) continue;
    const Expressions::Facts& more = node.facts;
    facts.norm.insert(facts.norm.end(), more.norm.begin(), more.norm.end());
    facts.finite.insert(facts.finite.end(), more.finite.begin(), more.finite.end());
    facts.counted = facts.counted || more.counted;
  }
}

/// Chunks of sums of squares are numbered by the place in the bucket that the operand states.
void Mathematics::check_position(const Place& at, const program::Operand& gradients, const Piece& piece) {
  const ModelParameter& parameter = nth(world_.parameters(), piece.parameter);
  const program::ParameterPlace::Use& owner = parameter.uses[0];
  const int64_t found = gradients.position + piece.begin * 4 / size_of(piece.dtype);
  if (owner.segment != gradients.index || found != owner.bucket_offset + piece.position)
    fail(at, "position",
         fmt::format("it takes {} for byte {} of segment {}'s bucket; it belongs to byte {} of segment {}'s",
                     name_of(piece), found, gradients.index, owner.bucket_offset + piece.position,
                     owner.segment));
}

void Mathematics::norm_or_finite(const Place& at) {
  const program::Instruction& i = instruction(at);
  if (i.kind == program::InstructionKind::finite) flags_.try_emplace(at.iteration, at);
  std::set<int> seen;
  Expressions::Facts merged;
  for (const program::Operand& operand : i.operands) {
    if (!program::reads(operand.access)) continue;
    const auto pieces = read(at, operand);
    if (operand.role != program::Role::gradients) {
      for (const Piece& piece : pieces)
        if (const auto& node = expressions_.node(piece.expression);
            node.kind == Expressions::Kind::facts && node.iteration != at.iteration)
          fail(at, "stale",
               fmt::format("its {} is of an earlier step", lockstep::program::name_of(operand.role)));
      merge_facts(pieces, seen, merged);
      continue;
    }
    for (const Piece& piece : pieces) {
      if (piece.expression == Expressions::kNothing || !check_final(at, piece) || piece.parameter < 0)
        continue;
      if (i.kind == program::InstructionKind::norm) check_position(at, operand, piece);
      const Coverage bytes{piece.parameter, piece.position, piece.position_at(piece.end)};
      (i.kind == program::InstructionKind::norm ? merged.norm : merged.finite).push_back(bytes);
    }
  }
  const int facts = expressions_.facts(at.iteration, std::move(merged));
  for (const program::Operand& operand : i.operands)
    if (program::writes(operand.access))
      memory(at.rank).write(operand.range,
                            operand.role == program::Role::temporary ? Expressions::kNothing : facts,
                            operand.dtype);
}

void Mathematics::finish(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration) {
    check_every_parameter_updated(iteration);
    check_all_owned_updated(iteration);
    check_flags_obeyed(iteration);
    check_pushes(iteration);
  }
  check_gradients_used();
}

void Mathematics::check_every_parameter_updated(int iteration) {
  std::vector<Coverage> all = updated_[iteration];
  for (const Pushed& pushed : pushed_[iteration]) all.push_back(pushed.bytes);
  if (all.empty() && !world_.trains()) return;
  const std::string gap = missing(all, false);
  if (!gap.empty() && reported_.insert({-1, -1, gap}).second)
    findings_.add(CheckFinding::Property::mathematics, -1, -1,
                  "the step should update every parameter; it updates " + gap);
}

void Mathematics::check_pushes(int iteration) {
  auto& metrics = pushed_metrics_[iteration];
  std::sort(metrics.begin(), metrics.end());
  const auto every_leaf = expressions_.complete_atoms(iteration, 1);
  if (!metrics.empty() && metrics != every_leaf && reported_.insert({-1, -1, "pushed metrics"}).second)
    findings_.add(CheckFinding::Property::mathematics, -1, -1,
                  fmt::format("all workers' pushes together should hold the metrics of every leaf once: {}",
                              difference(metrics, every_leaf, 1)));
  const auto& list = pushed_[iteration];
  std::map<int, std::set<int64_t>> borders;
  for (const Pushed& one : list) borders[one.bytes.parameter].insert({one.bytes.begin, one.bytes.end});
  for (const auto& [parameter, at] : borders) {
    const ModelParameter& model = nth(world_.parameters(), parameter);
    const int uses = static_cast<int>(model.uses.size());
    const auto expected = expressions_.complete_atoms(iteration, uses);
    for (auto begin = at.begin(); std::next(begin) != at.end(); ++begin) {
      std::vector<Atom> together;
      const Pushed* last = nullptr;
      for (const Pushed& one : list)
        if (one.bytes.parameter == parameter && one.bytes.begin <= *begin && one.bytes.end > *begin) {
          const auto& atoms = expressions_.atoms(one.expression);
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
}

}  // namespace lockstep::proof
