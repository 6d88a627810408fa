#pragma once

#include <span>
#include <string>
#include <string_view>

#include "program/program.h"

namespace lockstep::program {

/// The operands that a kind of instruction takes. docs/step-program.md explains this table.
struct RoleRule {
  Role role;
  unsigned access;  ///< kRead | kWrite | kReadWrite
  int least, most;

  bool allows(Access wanted) const { return (access >> static_cast<unsigned>(wanted) & 1u) != 0; }
  std::string access_text() const;
  std::string count_text() const;
};

struct InstructionRule {
  InstructionKind kind;
  unsigned lanes;  ///< kinds of lanes that run it
  bool needs_segment, needs_micro_batch;
  bool sums_elements;  ///< operands are whole elements of their type
  std::span<const RoleRule> roles;

  bool runs_on(LaneKind lane) const { return (lanes >> static_cast<unsigned>(lane) & 1u) != 0; }
  const RoleRule* find(Role role) const;
  std::string roles_text() const;
};

const InstructionRule& rule_of(InstructionKind kind);
std::string_view name_of(Access access);  ///< "read", ...
bool runs_segment(InstructionKind kind);  ///< forward, recompute and the backwards
bool is_backward(InstructionKind kind);
/// Of a serve without a bound: where answers to the worker `peer` are sent from.
bool is_outbox(const Instruction& instruction, const Operand& operand);

}  // namespace lockstep::program
