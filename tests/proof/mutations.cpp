#include "proof/mutations.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/happens_before.h"
#include "program/memory/memory_plan.h"

namespace lockstep::proof {
namespace {

std::string at(const program::Program& program, size_t index) {
  return fmt::format("rank {}, {}", program.rank, program::describe(program, static_cast<int>(index)));
}

bool is_implied(const program::Program& program, size_t index, const program::Dependency& dependency) {
  program::HappensBefore order(program, 2);
  order.visit_all();
  const int n = static_cast<int>(program.instructions.size());
  return order.before((1 - dependency.distance) * n + dependency.instruction, n + static_cast<int>(index));
}

/// Renumbers dependencies after instruction `removed` has gone; those on it are replaced by its own.
void erase_instruction(program::Program& program, int removed) {
  const auto gone = program.instructions[static_cast<size_t>(removed)].after;
  program.instructions.erase(program.instructions.begin() + removed);
  for (program::Instruction& instruction : program.instructions) {
    std::vector<program::Dependency> after;
    for (const program::Dependency& d : instruction.after) {
      if (d.instruction != removed) {
        after.push_back(d);
        continue;
      }
      for (const program::Dependency& inherited : gone)
        if (inherited.instruction != removed && d.distance + inherited.distance <= 1)
          after.push_back({inherited.instruction, d.distance + inherited.distance});
    }
    for (program::Dependency& d : after) d.instruction -= d.instruction > removed ? 1 : 0;
    instruction.after = std::move(after);
  }
}

/// Puts a copy of `extra` after instruction `index`.
void insert_after(program::Program& program, int index, program::Instruction extra) {
  for (program::Instruction& instruction : program.instructions)
    for (program::Dependency& d : instruction.after)
      if (d.instruction > index) ++d.instruction;
  extra.after.clear();
  program.instructions.insert(program.instructions.begin() + index + 1, std::move(extra));
}

void derive_again(program::Program& program) {
  for (program::Instruction& instruction : program.instructions) instruction.after.clear();
  program::derive_dependencies(program);
}

}  // namespace

std::vector<Mutant> without_a_dependency(const Programs& programs) {
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t i = 0; i < programs[r].instructions.size(); ++i)
      for (size_t d = 0; d < programs[r].instructions[i].after.size(); ++d) {
        Mutant mutant{"", programs};
        auto& after = mutant.programs[r].instructions[i].after;
        const program::Dependency removed = after[d];
        after.erase(after.begin() + static_cast<std::ptrdiff_t>(d));
        if (is_implied(mutant.programs[r], i, removed)) continue;
        mutant.what = fmt::format("{} without its dependency on {} at distance {}", at(programs[r], i),
                                  removed.instruction, removed.distance);
        mutants.push_back(std::move(mutant));
      }
  return mutants;
}

std::vector<Mutant> without_an_instruction(const Programs& programs) {
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
      mutants.push_back({"without " + at(programs[r], i), programs});
      erase_instruction(mutants.back().programs[r], static_cast<int>(i));
      derive_again(mutants.back().programs[r]);
    }
  return mutants;
}

std::vector<Mutant> with_a_repeated(const Programs& programs, program::InstructionKind kind) {
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
      if (programs[r].instructions[i].kind != kind) continue;
      mutants.push_back({"twice " + at(programs[r], i), programs});
      insert_after(mutants.back().programs[r], static_cast<int>(i), programs[r].instructions[i]);
      derive_again(mutants.back().programs[r]);
    }
  return mutants;
}

std::vector<Mutant> with_swapped_communications(const Programs& programs) {
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r) {
    int previous = -1;
    for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
      const program::Instruction& second = programs[r].instructions[i];
      if (!program::communicates(second.kind)) continue;
      if (previous >= 0) {
        const program::Instruction& first = programs[r].instructions[static_cast<size_t>(previous)];
        // Reads of different servers' parameters may come in any order.
        if (first.kind != program::InstructionKind::pull || second.kind != program::InstructionKind::pull) {
          Mutant mutant{fmt::format("{} and {} swapped", at(programs[r], static_cast<size_t>(previous)),
                                    at(programs[r], i)),
                        programs};
          auto& list = mutant.programs[r].instructions;
          std::swap(list[static_cast<size_t>(previous)], list[i]);
          derive_again(mutant.programs[r]);
          mutants.push_back(std::move(mutant));
        }
      }
      previous = static_cast<int>(i);
    }
  }
  return mutants;
}

std::vector<Mutant> with_a_shifted_range(const Programs& programs) {
  return with_each_operand(
      programs, "begins 16 bytes later",
      [](const program::Program&, const program::Instruction& i, program::Operand& o) {
        static constexpr program::Role kDecisive[] = {
            program::Role::batch,           program::Role::input,
            program::Role::output,          program::Role::stash,
            program::Role::output_gradient, program::Role::input_gradient,
            program::Role::gradients,       program::Role::send,
            program::Role::receive,         program::Role::source,
            program::Role::destination,     program::Role::residual};
        const bool decisive =
            std::find(std::begin(kDecisive), std::end(kDecisive), o.role) != std::end(kDecisive) ||
            (o.role == program::Role::data && i.kind != program::InstructionKind::agree) ||
            (o.role == program::Role::parameters && i.kind == program::InstructionKind::update);
        if (!decisive || o.range.size_bytes < 32) return false;
        o.range.offset += 16;
        o.range.size_bytes -= 16;
        return true;
      });
}

std::vector<Mutant> with_another_owned_range(const Programs& programs) {
  const auto changes_of = [](const tensor::Part& owned) {
    const int64_t first = owned.first(), count = owned.count();
    std::vector<std::pair<const char*, tensor::Part>> changes{
        {"begins an element later", tensor::Part::range(first + 1, count - 1)},
        {"ends an element later", tensor::Part::range(first, count + 1)},
        {"ends an element earlier", tensor::Part::range(first, count - 1)},
        {"lies an element later", tensor::Part::range(first + 1, count)},
        {"is empty", {}}};
    if (first > 0) {
      changes.emplace_back("begins an element earlier", tensor::Part::range(first - 1, count + 1));
      changes.emplace_back("lies an element earlier", tensor::Part::range(first - 1, count));
    }
    if (count % 4 == 0) {
      changes.emplace_back("is its left half", tensor::Part::strided(first, 2, count / 4, 4));
      changes.emplace_back("is its right half", tensor::Part::strided(first + 2, 2, count / 4, 4));
    }
    return changes;
  };
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t p = 0; p < programs[r].parameters.size(); ++p) {
      const program::ParameterPlace& place = programs[r].parameters[p];
      if (place.owned.empty()) continue;
      for (const auto& [what, owned] : changes_of(place.owned)) {
        mutants.push_back({fmt::format("rank {}: what it owns of '{}' {}", r, place.name, what), programs});
        mutants.back().programs[r].parameters[p].owned = owned;
      }
    }
  return mutants;
}

std::vector<Mutant> with_another_held_part(const Programs& programs) {
  using tensor::Part;
  const auto changes_of = [](const Part& held) {
    const int64_t first = held.first(), count = held.count();
    return std::vector<std::pair<const char*, Part>>{
        {"begins an element later", Part::range(first + 1, count - 1)},
        {"ends an element later", Part::range(first, count + 1)},
        {"ends an element earlier", Part::range(first, count - 1)},
        {"lies an element later", Part::range(first + 1, count)},
        {"is its left half", Part::strided(first, 2, count / 4, 4)},
        {"is its right half", Part::strided(first + 2, 2, count / 4, 4)},
        {"is empty", {}}};
  };
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t p = 0; p < programs[r].parameters.size(); ++p) {
      const program::ParameterPlace& place = programs[r].parameters[p];
      if (place.buffer < 0) continue;
      for (const auto& [what, held] : changes_of(place.held)) {
        mutants.push_back({fmt::format("rank {}: what it has of '{}' {}", r, place.name, what), programs});
        mutants.back().programs[r].parameters[p].held = held;
      }
    }
  return mutants;
}

std::vector<Mutant> with_a_second_server(const Programs& programs) {
  const auto owns = [](const program::Program& program) {
    return std::ranges::any_of(program.parameters,
                               [](const program::ParameterPlace& place) { return !place.owned.empty(); });
  };
  const auto is_one_of = [](const program::Program& program, const auto&... kinds) {
    return std::ranges::any_of(program.instructions,
                               [&](const program::Instruction& i) { return ((i.kind == kinds) || ...); });
  };
  using Kind = program::InstructionKind;
  std::vector<Mutant> mutants;
  for (const program::Program& server : programs) {
    if (!owns(server) || is_one_of(server, Kind::forward, Kind::serve) || !is_one_of(server, Kind::update))
      continue;
    const int added = static_cast<int>(programs.size());
    Mutant mutant{fmt::format("rank {} doubled", server.rank), programs};
    mutant.programs.push_back(server);
    mutant.programs.back().rank = added;
    for (program::Program& program : mutant.programs) {
      program.world_size = added + 1;
      for (program::Group& group : program.groups) {
        std::vector<int> members = group.members.list();
        members.push_back(added);
        group.members = program::Members(std::move(members));
      }
      for (program::Instruction& i : program.instructions) {
        std::vector<program::Operand> to_double;
        for (program::Operand& o : i.operands) {
          if (i.kind == Kind::exchange && o.role == program::Role::send && o.peer == server.rank) {
            to_double.push_back(o);
            to_double.back().peer = added;
          }
          if (i.kind != Kind::agree || o.role != program::Role::data) continue;
          const int64_t record = o.range.size_bytes / added;  // one of each member
          program.buffer(o.range.buffer).size_bytes += record;
          o.range.size_bytes += record;
        }
        i.operands.insert(i.operands.end(), to_double.begin(), to_double.end());
        if (program.rank == added)
          std::erase_if(i.operands, [](const program::Operand& o) { return o.role == program::Role::send; });
      }
      derive_again(program);
    }
    mutants.push_back(std::move(mutant));
  }
  return mutants;
}

std::vector<Mutant> with_another_state_place(const Programs& programs) {
  std::vector<Mutant> mutants;
  const auto add = [&](size_t r, const std::string& what,
                       const std::function<void(std::vector<program::ParameterPlace>&)>& change) {
    mutants.push_back({fmt::format("rank {}: {}", r, what), programs});
    change(mutants.back().programs[r].parameters);
  };
  for (size_t r = 0; r < programs.size(); ++r) {
    const auto& places = programs[r].parameters;
    for (size_t p = 0; p < places.size(); ++p) {
      const auto& name = places[p].name;
      for (size_t slot = 0; slot < places[p].states.size(); ++slot)
        for (const int64_t shift : {-4, 4})
          add(r, fmt::format("state {} of '{}' lies {} bytes on", slot, name, shift),
              [=](auto& changed) { changed[p].states[slot].offset += shift; });
      if (places[p].states.size() == 2)
        add(r, fmt::format("the slots of '{}' exchanged", name),
            [=](auto& changed) { std::swap(changed[p].states[0], changed[p].states[1]); });
      if (!places[p].states.empty())
        add(r, fmt::format("'{}' without state", name), [=](auto& changed) { changed[p].states.clear(); });
      for (size_t other = p + 1; other < places.size(); ++other)
        if (places[p].states != places[other].states)
          add(r, fmt::format("the state of '{}' and '{}' exchanged", name, places[other].name),
              [=](auto& changed) { std::swap(changed[p].states, changed[other].states); });
    }
  }
  return mutants;
}

namespace {

/// Whether all uses of a buffer are as scratch of one instruction each, none of them in a span of
/// instructions: then its contents do not live there, though it is used before and after.
bool is_scratch_outside(const program::Program& program, size_t buffer,
                        const std::pair<size_t, size_t>& span) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    for (const program::Operand& operand : program.instructions[i].operands)
      if (operand.range.buffer == static_cast<int>(buffer) &&
          (operand.role != program::Role::temporary || (i >= span.first && i <= span.second)))
        return false;
  return true;
}

}  // namespace

std::vector<Mutant> with_a_shared_live_buffer(const Programs& programs) {
  std::vector<Mutant> mutants;
  Programs placed = programs;
  for (program::Program& program : placed) program::plan_memory(program);
  for (size_t r = 0; r < placed.size(); ++r) {
    const program::Program& program = placed[r];
    std::vector<std::pair<size_t, size_t>> lifetime(program.buffers.size(), {program.instructions.size(), 0});
    for (size_t i = 0; i < program.instructions.size(); ++i)
      for (const program::Operand& operand : program.instructions[i].operands) {
        auto& [first, last] = lifetime[static_cast<size_t>(operand.range.buffer)];
        first = std::min(first, i);
        last = i;
      }
    for (size_t a = 0; a < program.buffers.size(); ++a)
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        if (a == b || program.buffers[a].space != program::Space::arena ||
            program.buffers[b].space != program::Space::arena)
          continue;
        if (lifetime[a].first > lifetime[b].second || lifetime[b].first > lifetime[a].second) continue;
        if (is_scratch_outside(program, a, lifetime[b]) || is_scratch_outside(program, b, lifetime[a]))
          continue;
        mutants.push_back({fmt::format("rank {}: {} moved onto {}", program.rank, program.buffers[a].name,
                                       program.buffers[b].name),
                           placed});
        mutants.back().programs[r].buffers[a].offset = program.buffers[b].offset;
      }
  }
  return mutants;
}

std::vector<Mutant> with_sends_before_receives(const Programs& programs) {
  Mutant mutant{"all exchanges send before they receive", programs};
  int split = 0;
  for (program::Program& program : mutant.programs) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      program::Instruction& sends = program.instructions[i];
      if (sends.kind != program::InstructionKind::exchange) continue;
      program::Instruction receives = sends;
      std::erase_if(receives.operands,
                    [](const program::Operand& o) { return o.role == program::Role::send; });
      if (receives.operands.empty() || receives.operands.size() == sends.operands.size()) continue;
      std::erase_if(sends.operands,
                    [](const program::Operand& o) { return o.role == program::Role::receive; });
      insert_after(program, static_cast<int>(i), receives);
      ++split;
      ++i;
    }
    derive_again(program);
  }
  if (split == 0) return {};
  return {mutant};
}

std::vector<Mutant> with_each(
    const Programs& programs, const std::string& what,
    const std::function<bool(const program::Program&, program::Instruction&)>& change) {
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
      Mutant mutant{what + ": " + at(programs[r], i), programs};
      if (change(programs[r], mutant.programs[r].instructions[i])) mutants.push_back(std::move(mutant));
    }
  return mutants;
}

std::vector<Mutant> with_each_collective(const Programs& programs, program::InstructionKind kind,
                                         const std::string& what,
                                         const std::function<bool(program::Instruction&)>& change) {
  std::vector<Mutant> mutants;
  const auto is_one = [kind](const program::Instruction& i) { return i.kind == kind; };
  const auto& first = programs[0].instructions;
  for (int number = 0; number < std::count_if(first.begin(), first.end(), is_one); ++number) {
    Mutant mutant{fmt::format("{} {} of all ranks {}", program::name_of(kind), number, what), programs};
    bool changed = false;
    for (program::Program& program : mutant.programs) {
      int left = number;
      for (program::Instruction& i : program.instructions)
        if (is_one(i) && left-- == 0) changed = change(i) || changed;
    }
    if (changed) mutants.push_back(std::move(mutant));
  }
  return mutants;
}

std::vector<Mutant> with_each_operand(
    const Programs& programs, const std::string& what,
    const std::function<bool(const program::Program&, const program::Instruction&, program::Operand&)>&
        change) {
  std::vector<Mutant> mutants;
  for (size_t r = 0; r < programs.size(); ++r)
    for (size_t i = 0; i < programs[r].instructions.size(); ++i)
      for (size_t o = 0; o < programs[r].instructions[i].operands.size(); ++o) {
        const program::Operand& operand = programs[r].instructions[i].operands[o];
        Mutant mutant{fmt::format("{} of {} {}", program::name_of(operand.role), at(programs[r], i), what),
                      programs};
        program::Instruction& changed = mutant.programs[r].instructions[i];
        if (change(programs[r], programs[r].instructions[i], changed.operands[o]))
          mutants.push_back(std::move(mutant));
      }
  return mutants;
}

}  // namespace lockstep::proof
