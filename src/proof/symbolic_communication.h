#pragma once

#include <vector>

#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// The effect of matched communications on ranks' memories.
void transfer(SymbolicMachine& machine, const Place& from, const program::Operand& send, const Place& to,
              const program::Operand& receive);
/// The data of a collective.
const program::Operand& data_of(const program::Instruction& collective);
/// The members' sum, over the whole range of their data.
std::vector<Piece> reduction(SymbolicMachine& machine, const std::vector<Place>& members);
/// `members` in the order of their group.
void collective(SymbolicMachine& machine, const std::vector<Place>& members);
/// Afterwards each member has the sum of its own block; its other blocks are not usable.
void ring_reduce_scatter(SymbolicMachine& machine, const std::vector<Place>& members);
/// Afterwards each member has all members' blocks.
void ring_all_gather(SymbolicMachine& machine, const std::vector<Place>& members);
/// The server's parameters arrive, after an unknown number of updates. A push changes no memory.
void pull(SymbolicMachine& machine, const Place& worker, const program::Operand& parameters, int server,
          int serve);

}  // namespace lockstep::proof
