#include "proof/ownership_proof.h"

#include <fmt/format.h>

namespace lockstep::proof {

void OwnershipProof::before(const Place& at) {
  const program::Instruction& i = instruction(at);
  if (i.kind != program::InstructionKind::update) return;
  const program::Operand *parameters = nullptr, *state = nullptr;
  for (const program::Operand& operand : i.operands) {
    if (operand.role == program::Role::parameters) parameters = &operand;
    if (operand.role == program::Role::state) state = &operand;
  }
  for (const HeldPart& part : machine().held().in(at.rank, parameters->range)) {
    check_owned(at, part);
    check_state(at, part, *parameters, state);
  }
}

void OwnershipProof::check_owned(const Place& at, const HeldPart& part) {
  const program::ParameterPlace& place = program(at).parameters[part.place];
  const int64_t end = part.position + part.end - part.begin;
  if (part.position < place.owned_begin || end > place.owned_end)
    fail(at, "owned",
         fmt::format("it updates bytes {} to {} of '{}', and this rank owns {} to {}", part.position, end,
                     place.name, place.owned_begin, place.owned_end));
  updated_bytes_[{at.rank, at.iteration}] += end - part.position;
}

void OwnershipProof::check_state(const Place& at, const HeldPart& part, const program::Operand& parameters,
                                 const program::Operand* state) {
  const program::ParameterPlace& place = program(at).parameters[part.place];
  const int64_t size_bytes = parameters.range.size_bytes;
  const int64_t state_bytes = state == nullptr ? 0 : state->range.size_bytes;
  if (state_bytes != static_cast<int64_t>(place.states.size()) * size_bytes)
    return fail(at, "state slots",
                fmt::format("it has {} bytes of optimizer state for {} of parameters, and the program says "
                            "where {} slots of '{}' lie",
                            state_bytes, size_bytes, place.states.size(), place.name));
  for (size_t slot = 0; slot < place.states.size(); ++slot) {
    const int64_t found = state->range.offset + static_cast<int64_t>(slot) * size_bytes + part.begin;
    const program::ParameterPlace::State& expected = place.states[slot];
    if (expected.buffer != state->range.buffer || expected.offset + part.position != found)
      fail(at, "state place",
           fmt::format("its state {} of byte {} of '{}' is byte {} of {}; the program says byte {} of {}",
                       slot, part.position, place.name, found,
                       nth(program(at).buffers, state->range.buffer).name, expected.offset + part.position,
                       nth(program(at).buffers, expected.buffer).name));
  }
}

void OwnershipProof::finish(int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration)
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto updated = updated_bytes_.find({rank, iteration});
      if (updated == updated_bytes_.end()) continue;  // a server, or a program that updates nothing
      int64_t owned = 0;
      for (const program::ParameterPlace& place : world().program(rank).parameters)
        owned += place.owned_end - place.owned_begin;
      if (updated->second != owned)
        findings().add(rank, -1, "owned",
                       fmt::format("it updates {} bytes in a step, and owns {}", updated->second, owned));
    }
}

}  // namespace lockstep::proof
