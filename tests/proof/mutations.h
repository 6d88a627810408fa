#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program/program.h"

namespace lockstep::proof {

/// One way to break a set of programs: what was done, and the broken programs.
struct Mutant {
  std::string what;
  std::vector<program::Program> programs;
};
using Programs = std::vector<program::Program>;

/// Every dependency that lanes and other dependencies do not imply, removed, one at a time.
std::vector<Mutant> without_a_dependency(const Programs& programs);
/// Each instruction left out; what depended on it depends on what it depended on.
std::vector<Mutant> without_an_instruction(const Programs& programs);
/// Each instruction that `selected` picks, done twice in a row.
std::vector<Mutant> with_a_repeated(const Programs& programs, program::InstructionKind kind);
/// Two neighbouring communications of one rank do each other's work.
std::vector<Mutant> with_swapped_communications(const Programs& programs);
/// Operands of the roles that decide results begin 16 bytes later.
std::vector<Mutant> with_a_shifted_range(const Programs& programs);
/// Each owned range of a parameter begins or ends 4 bytes elsewhere, or both, or is nobody's.
std::vector<Mutant> with_another_owned_range(const Programs& programs);
/// Each part of a parameter that a rank has begins or ends an element elsewhere, or is of columns, or empty.
std::vector<Mutant> with_another_held_part(const Programs& programs);
/// Each server of a synchronous program has a double, the last rank: workers send their gradients to both,
/// both make the same updates, and workers read those of the first.
std::vector<Mutant> with_a_second_server(const Programs& programs);
/// Each place of a slot of optimizer state 4 bytes elsewhere; a parameter's slots, and two parameters'
/// states, exchanged.
std::vector<Mutant> with_another_state_place(const Programs& programs);
/// Arena buffers, once placed, moved onto others that are alive at the same time.
std::vector<Mutant> with_a_shared_live_buffer(const Programs& programs);
/// All exchanges that send and receive, split: all sends first. No mutant where there is no such exchange.
std::vector<Mutant> with_sends_before_receives(const Programs& programs);
/// `change` applied to each instruction in turn, wherever it returns true (that it changed something).
std::vector<Mutant> with_each(
    const Programs& programs, const std::string& what,
    const std::function<bool(const program::Program&, program::Instruction&)>& change);
/// `change` applied to the same collective on all ranks together: the first of its kind on each, then the
/// second, and so on. A mutant wherever it returns true for one of them.
std::vector<Mutant> with_each_collective(const Programs& programs, program::InstructionKind kind,
                                         const std::string& what,
                                         const std::function<bool(program::Instruction&)>& change);
/// As with_each, for each operand.
std::vector<Mutant> with_each_operand(
    const Programs& programs, const std::string& what,
    const std::function<bool(const program::Program&, const program::Instruction&, program::Operand&)>&
        change);

}  // namespace lockstep::proof
