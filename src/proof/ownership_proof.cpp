#include "proof/ownership_proof.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep::proof {

void OwnershipProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  if (i.kind == program::InstructionKind::propose) return check_proposed(at);
  if (i.kind != program::InstructionKind::update) return;
  for (const program::Operand& parameters : i.operands) {
    if (parameters.role != program::Role::parameters) continue;
    for (const HeldPart& part : machine().held().in(at.rank, parameters.range)) {
      check_owned(at, part);
      check_whole(at, part);
      check_state(at, part);
    }
  }
}

void OwnershipProof::check_owned(const Place& at, const HeldPart& part) {
  const program::ParameterPlace& place = program(at).parameters[part.place];
  const int64_t end = part.position + part.end - part.begin;
  if (part.position < place.owned_begin || end > place.owned_end)
    fail(at, "owned",
         fmt::format("it updates bytes {} to {} of '{}', but this rank owns {} to {}", part.position, end,
                     place.name, place.owned_begin, place.owned_end));
  updated_bytes_[{at.rank, at.iteration}] += end - part.position;
}

/// What is updated as a whole is updated by one instruction, which has the room that this takes.
void OwnershipProof::check_whole(const Place& at, const HeldPart& part) {
  const program::ParameterPlace& place = program(at).parameters[part.place];
  if (place.whole_scratch == 0) return;
  if (part.end - part.begin != place.size_bytes)
    fail(at, "whole",
         fmt::format("it updates {} of the {} bytes of '{}', which is updated as a whole",
                     part.end - part.begin, place.size_bytes, place.name));
  const auto has_room = [&](const program::Operand& operand) {
    return operand.role == program::Role::temporary && operand.range.size_bytes >= place.whole_scratch;
  };
  if (std::ranges::none_of(instruction(at).operands, has_room))
    fail(at, "scratch",
         fmt::format("it updates '{}' as a whole, for which it needs a temporary of {} bytes", place.name,
                     place.whole_scratch));
}

void OwnershipProof::check_state(const Place& at, const HeldPart& part) {
  const program::ParameterPlace& place = program(at).parameters[part.place];
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
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const program::ByteRange& state = slots[slot]->range;
    const program::ParameterPlace::State& expected = place.states[slot];
    if (expected.buffer != state.buffer || expected.offset + part.position != state.offset + part.begin)
      fail(at, "state place",
           fmt::format("its state {} of byte {} of '{}' is byte {} of {}; the program says byte {} of {}",
                       slot, part.position, place.name, state.offset + part.begin,
                       nth(program(at).buffers, state.buffer).name, expected.offset + part.position,
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
      for (const HeldPart& part : machine().held().in(at.rank, parameters.range))
        check_proposed(at, part, parameters.range.size_bytes, state.range);
    }
  }
}

void OwnershipProof::check_proposed(const Place& at, const HeldPart& part, int64_t size_bytes,
                                    const program::ByteRange& state) {
  const program::ParameterPlace& place = program(at).parameters[part.place];
  for (int64_t slot = 0; slot < state.size_bytes / std::max<int64_t>(size_bytes, 1); ++slot) {
    const int64_t found = state.offset + slot * size_bytes + part.begin;
    if (slot < static_cast<int64_t>(place.states.size()) && nth(place.states, slot).buffer == state.buffer &&
        nth(place.states, slot).offset + part.position == found)
      continue;
    fail(at, "state place",
         fmt::format("it moves byte {} of {} as state {} of byte {} of '{}'; the program says otherwise",
                     found, nth(program(at).buffers, state.buffer).name, slot, part.position, place.name));
  }
}

void OwnershipProof::finish(int iterations) {
  check_amounts(iterations);
  if (world().trains()) check_owners();
}

void OwnershipProof::check_amounts(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration)
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto updated = updated_bytes_.find({rank, iteration});
      if (updated == updated_bytes_.end()) continue;  // a server, or a program that updates nothing
      int64_t owned = 0;
      for (const program::ParameterPlace& place : world().program(rank).parameters)
        owned += place.owned_end - place.owned_begin;
      if (updated->second != owned)
        findings().add(rank, -1, "owned",
                       fmt::format("it updates {} bytes in a step, but owns {}", updated->second, owned));
    }
}

void OwnershipProof::check_owners() {
  struct Edge {
    int64_t at;
    int rank;
    bool begins;
  };
  std::vector<std::vector<Edge>> edges(world().parameters().size());
  for (int rank = 0; rank < world().size(); ++rank) {
    stages_.push_back(stage_of(rank));
    const auto& places = world().program(rank).parameters;
    for (size_t place = 0; place < places.size(); ++place) {
      if (places[place].owned_begin >= places[place].owned_end) continue;
      auto& of_parameter = nth(edges, world().parameter_of_place(rank, place));
      of_parameter.push_back({places[place].owned_begin, rank, true});
      of_parameter.push_back({places[place].owned_end, rank, false});
    }
  }
  for (int parameter = 0; parameter < static_cast<int>(edges.size()); ++parameter) {
    auto& of_parameter = nth(edges, parameter);
    std::ranges::sort(of_parameter, {}, &Edge::at);
    std::set<int> owners;
    for (size_t i = 0; i < of_parameter.size(); ++i) {
      if (i > 0 && owners.size() > 1 && of_parameter[i - 1].at < of_parameter[i].at)
        check_shared(parameter, {of_parameter[i - 1].at, of_parameter[i].at}, owners);
      if (of_parameter[i].begins)
        owners.insert(of_parameter[i].rank);
      else
        owners.erase(of_parameter[i].rank);
    }
  }
}

void OwnershipProof::check_shared(int parameter, const layout::ByteSpan& bytes, const std::set<int>& owners) {
  const int first = *owners.begin();
  const auto wrong = [&](int rank, const char* what) {
    findings().add(
        rank, -1, "owners",
        fmt::format("bytes {} to {} of '{}' are updated by ranks {}: one rank should update them, or all "
                    "replicas of their stage; {}",
                    bytes.begin, bytes.end, nth(world().parameters(), parameter).name,
                    fmt::join(owners, ", "), what));
  };
  for (const int owner : owners)
    if (nth(stages_, owner) != nth(stages_, first)) return wrong(owner, "this rank is none of these");
  for (int rank = 0; rank < world().size(); ++rank) {
    if (owners.contains(rank) || nth(stages_, rank) != nth(stages_, first)) continue;
    const auto& places = world().program(rank).parameters;
    for (size_t place = 0; place < places.size(); ++place)
      if (world().parameter_of_place(rank, place) == parameter &&
          !intersection(held_bytes(world().program(rank), static_cast<int>(place)), bytes).empty())
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
