#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "program/operand_binding.h"
#include "program/program.h"
#include "program/segment_code.h"
#include "proof/call_memory.h"
#include "proof/graph_symbols.h"

namespace lockstep::proof {

/// Proves what the kernel calls of a segment's instruction do, with symbols in place of numbers and addresses
/// that no memory has: no device is needed. Each call finds where it reads what its op reads by the graph;
/// all that the instruction declares to write is written, once, by whom it belongs to; no value is lost while
/// somebody has yet to read it; what one instruction leaves in a stash for another is what that one finds.
/// docs/step-program.md lists it.
///
/// One proof serves programs of one ModelCode, in program order: instructions that differ in their
/// micro-batch alone are proven once.
class CallProof {
 public:
  /// The code has to outlive it.
  explicit CallProof(const program::ModelCode& code);

  /// All of a program's instructions that run a segment: what is wrong, each fault beginning with its
  /// instruction. Throws InternalError if operands are not even bound.
  std::vector<std::string> check(const program::Program& program);
  /// One instruction, with these calls instead of its own.
  std::vector<std::string> check(const program::Program& program, int instruction,
                                 const std::vector<program::KernelCall>& calls);
  /// An instruction's own calls, at the addresses of the proof.
  std::vector<program::KernelCall> calls_of(const program::Program& program, int instruction) const;
  /// Where its operands lie. REQUIRES: the program outlives it.
  program::OperandBinding operands_of(const program::Program& program, int instruction) const;

 private:
  void enter(const program::OperandBinding& operands, CallMemory& memory) const;
  void enter_parameters(const program::OperandBinding& operands, const program::Operand& operand,
                        CallMemory& memory) const;
  /// Runs one call; appends what is wrong.
  void run(const program::KernelCall& call, CallMemory& memory, std::vector<std::string>& faults) const;
  /// Whether all is there that the instruction declares to write.
  void check_written(const program::OperandBinding& operands, CallMemory& memory,
                     std::vector<std::string>& faults) const;
  void check_gradients(const program::OperandBinding& operands, const program::Operand& operand,
                       CallMemory& memory, std::vector<std::string>& faults) const;
  /// Equal for instructions whose calls differ in nothing but where their operands lie, and which find the
  /// same in their stashes.
  uint64_t shape_of(const program::Instruction& instruction) const;
  /// Who has written the stashes that later instructions read.
  void note_stashes(const program::Instruction& instruction, uint64_t shape);

  const program::ModelCode& code_;
  GraphSymbols symbols_;
  uint64_t places_ = 0;        ///< where the program in hand has parameters, and uses of them in buckets
  std::set<uint64_t> proven_;  ///< shapes
  /// What instructions of a shape leave in a stash, by its index.
  std::map<std::pair<uint64_t, int>, std::vector<CallMemory::Content>> contents_;
  /// Of a program's stashes, by buffer and offset: the shape of the last instruction that wrote there.
  std::map<std::pair<int, int64_t>, uint64_t> left_by_;
};

/// Throws InternalError with all that is wrong, if anything.
void ensure_calls(const program::Program& program, CallProof& proof);

}  // namespace lockstep::proof
