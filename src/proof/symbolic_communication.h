#pragma once

#include <vector>

#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// What communications that have met move between ranks' memories, and what they leave of it.
void transfer(SymbolicMachine& machine, const Place& from, const program::Operand& send, const Place& to,
              const program::Operand& receive);
/// What a collective works on.
const program::Operand& data_of(const program::Instruction& collective);
/// The members' sum, over the whole range of their data.
std::vector<Piece> reduction(SymbolicMachine& machine, const std::vector<Place>& members);
/// `members` in the order of their group.
void collective(SymbolicMachine& machine, const std::vector<Place>& members);
/// Each member has the sum of its own block, and nothing of use in the others'.
void ring_reduce_scatter(SymbolicMachine& machine, const std::vector<Place>& members);
/// Each member has all members' blocks.
void ring_all_gather(SymbolicMachine& machine, const std::vector<Place>& members);
/// The server's parameters arrive, after nobody knows how many updates. A push leaves nothing.
void pull(SymbolicMachine& machine, const Place& worker, const program::Operand& parameters, int server,
          int serve);

}  // namespace lockstep::proof
