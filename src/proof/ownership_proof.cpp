#include "proof/ownership_proof.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

namespace lockstep::proof {

void OwnershipProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  if (i.kind == program::InstructionKind::propose) return check_proposed(at);
  if (i.kind != program::InstructionKind::update) return;
  for (const program::Operand& parameters : i.operands) {
    if (parameters.role != program::Role::parameters) continue;
    for (const HeldRun& run : machine().held().in(at.rank, parameters.range)) {
      check_owned(at, run);
      check_whole(at, run);
      check_state(at, run);
    }
  }
}

void OwnershipProof::check_owned(const Place& at, const HeldRun& run) {
  const program::ParameterPlace& place = program(at).parameters[run.place];
  const tensor::Part part = run.part();
  if (!place.owned.contains(part))
    fail(at, "owned",
         fmt::format("it updates {} of '{}', but this rank owns {}", describe(part), place.name,
                     describe(place.owned)));
  updated_[{at.rank, at.iteration}] += part.count();
}

/// What is updated as a whole is updated by one instruction, which has the room that this takes.
void OwnershipProof::check_whole(const Place& at, const HeldRun& run) {
  const program::ParameterPlace& place = program(at).parameters[run.place];
  if (place.whole_scratch == 0) return;
  if (!run.part().is_whole(place.elements()))
    fail(at, "whole",
         fmt::format("it updates {} of the {} elements of '{}', which is updated as a whole",
                     run.part().count(), place.elements(), place.name));
  const auto has_room = [&](const program::Operand& operand) {
    return operand.role == program::Role::temporary && operand.range.size_bytes >= place.whole_scratch;
  };
  if (std::ranges::none_of(instruction(at).operands, has_room))
    fail(at, "scratch",
         fmt::format("it updates '{}' as a whole, for which it needs a temporary of {} bytes", place.name,
                     place.whole_scratch));
}

void OwnershipProof::check_state(const Place& at, const HeldRun& run) {
  const program::ParameterPlace& place = program(at).parameters[run.place];
  std::vector<const program::Operand*> slots(place.states.size());
  size_t found = 0;
  for (const program::Operand& operand : instruction(at).operands) {
    if (operand.role != program::Role::state) continue;
    ++found;
    if (operand.index >= 0 && operand.index < static_cast<int>(slots.size()))
      nth(slots, operand.index) = &operand;
  }
  if (found != slots.size() || std::ranges::find(slots, nullptr) != slots.end())
    return fail(at, "state slots",
                fmt::format("it has {} slots of optimizer state, but the program says where {} of '{}' lie",
                            found, slots.size(), place.name));
  const std::optional<int64_t> first = place.owned.place_of(run.part());
  if (!first) return;  // check_owned has told
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const program::ByteRange& state = slots[slot]->range;
    const program::ParameterPlace::State& expected = place.states[slot];
    if (expected.buffer != state.buffer || expected.offset + 4 * *first != state.offset + run.begin)
      fail(at, "state place",
           fmt::format("its state {} of element {} of '{}' is byte {} of {}; the program says byte {} of {}",
                       slot, run.part().first(), place.name, state.offset + run.begin,
                       nth(program(at).buffers, state.buffer).name, expected.offset + 4 * *first,
                       nth(program(at).buffers, expected.buffer).name));
  }
}

/// A propose has its slots of a segment's state one after the other.
void OwnershipProof::check_proposed(const Place& at) {
  const auto& operands = instruction(at).operands;
  for (const program::Operand& parameters : operands) {
    if (parameters.role != program::Role::parameters) continue;
    for (const program::Operand& state : operands) {
      if (state.role != program::Role::state || state.index != parameters.index) continue;
      for (const HeldRun& run : machine().held().in(at.rank, parameters.range))
        check_proposed(at, run, parameters.range.size_bytes, state.range);
    }
  }
}

void OwnershipProof::check_proposed(const Place& at, const HeldRun& run, int64_t size_bytes,
                                    const program::ByteRange& state) {
  const program::ParameterPlace& place = program(at).parameters[run.place];
  const std::optional<int64_t> first = place.owned.place_of(run.part());
  for (int64_t slot = 0; slot < state.size_bytes / std::max<int64_t>(size_bytes, 1); ++slot) {
    const int64_t found = state.offset + slot * size_bytes + run.begin;
    if (first && slot < static_cast<int64_t>(place.states.size()) &&
        nth(place.states, slot).buffer == state.buffer &&
        nth(place.states, slot).offset + 4 * *first == found)
      continue;
    fail(at, "state place",
         fmt::format("it moves byte {} of {} as state {} of {} of '{}'; the program says otherwise", found,
                     nth(program(at).buffers, state.buffer).name, slot, describe(run.part()), place.name));
  }
}

void OwnershipProof::finish(int iterations) {
  check_amounts(iterations);
  if (world().trains()) check_owners();
}

void OwnershipProof::check_amounts(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration)
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto updated = updated_.find({rank, iteration});
      if (updated == updated_.end()) continue;  // a server, or a program that updates nothing
      int64_t owned = 0;
      for (const program::ParameterPlace& place : world().program(rank).parameters)
        owned += place.owned.count();
      if (updated->second != owned)
        findings().add(rank, -1, "owned",
                       fmt::format("it updates {} elements in a step, but owns {}", updated->second, owned));
    }
}

void OwnershipProof::check_owners() {
  std::vector<Owners> owners(world().parameters().size());
  for (int rank = 0; rank < world().size(); ++rank) {
    stages_.push_back(stage_of(rank));
    const auto& places = world().program(rank).parameters;
    for (size_t place = 0; place < places.size(); ++place)
      if (!places[place].owned.empty())
        nth(owners, world().parameter_of_place(rank, place))[places[place].owned].insert(rank);
  }
  // What is frozen has none. What else has none is told by whoever looks for its update.
  for (int parameter = 0; parameter < static_cast<int>(owners.size()); ++parameter)
    if (!nth(owners, parameter).empty()) check_divided(parameter, nth(owners, parameter));
}

void OwnershipProof::check_divided(int parameter, const Owners& owners) {
  const ModelParameter& model = nth(world().parameters(), parameter);
  std::vector<tensor::Part> parts;
  for (const auto& [part, ranks] : owners) parts.push_back(part);
  if (const auto fault = tensor::tiling_fault(model.size_bytes / 4, parts)) {
    std::vector<std::string> told;
    for (const auto& [part, ranks] : owners)
      told.push_back(fmt::format("{} by rank{} {}", describe(part), ranks.size() == 1 ? "" : "s",
                                 fmt::join(ranks, ", ")));
    return findings().add(
        *owners.begin()->second.begin(), -1, "owners",
        fmt::format("element {} of '{}' is updated by {}; its parts are updated so: {}", fault->element,
                    model.name, fault->is_twice ? "owners of two parts" : "nobody", fmt::join(told, "; ")));
  }
  for (const auto& [part, ranks] : owners)
    if (ranks.size() > 1) check_shared(parameter, part, ranks);
}

void OwnershipProof::check_shared(int parameter, const tensor::Part& part, const std::set<int>& owners) {
  const int first = *owners.begin();
  const auto wrong = [&](int rank, const char* what) {
    findings().add(rank, -1, "owners",
                   fmt::format("{} of '{}' are updated by ranks {}: one rank should update them, or all "
                               "replicas of their stage; {}",
                               describe(part), nth(world().parameters(), parameter).name,
                               fmt::join(owners, ", "), what));
  };
  for (const int owner : owners)
    if (nth(stages_, owner) != nth(stages_, first)) return wrong(owner, "this rank is none of these");
  for (int rank = 0; rank < world().size(); ++rank) {
    if (owners.contains(rank) || nth(stages_, rank) != nth(stages_, first)) continue;
    const auto& places = world().program(rank).parameters;
    for (size_t place = 0; place < places.size(); ++place)
      if (world().parameter_of_place(rank, place) == parameter && places[place].held.meets(part))
        return wrong(rank, "this rank holds them, too, but does not update them");
  }
}

/// A rank that computes nothing, which only serves, is no replica of another.
int OwnershipProof::stage_of(int rank) const {
  for (int leaf = 0; leaf < world().leaves(); ++leaf)
    if (world().computes(rank, leaf)) {
      const int replicas = world().program(rank).replicas;
      return replicas > 0 ? rank / replicas : 0;
    }
  return -1 - rank;
}

}  // namespace lockstep::proof
