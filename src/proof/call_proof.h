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

/// Proves what the kernel calls of a segment's instruction do. It uses symbols instead of numbers, and
/// addresses without memory, so it needs no device. It proves: each call reads the values that its op reads
/// in the graph; everything that the instruction declares to write is written once, by the right call; no
/// value is overwritten before it is read; what one instruction leaves in a stash for another is what the
/// other finds. docs/step-program.md lists it.
///
/// One proof serves programs of one ModelCode, in program order. Instructions that differ only in their
/// micro-batch are proven once.
class CallProof {
 public:
  /// The code must outlive it.
  explicit CallProof(const program::ModelCode& code);

  /// Checks all instructions of a program that run a segment. Returns the faults; each begins with its
  /// instruction. Throws InternalError if operands cannot be bound.
  std::vector<std::string> check(const program::Program& program);
  /// One instruction, with these calls instead of its own.
  std::vector<std::string> check(const program::Program& program, int instruction,
                                 const std::vector<program::KernelCall>& calls);
  /// An instruction's own calls, at the addresses of the proof.
  std::vector<program::KernelCall> calls_of(const program::Program& program, int instruction) const;
  /// The addresses of its operands. REQUIRES: the program outlives it.
  program::OperandBinding operands_of(const program::Program& program, int instruction) const;

 private:
  void enter(const program::OperandBinding& operands, CallMemory& memory) const;
  void enter_parameters(const program::OperandBinding& operands, const program::Operand& operand,
                        CallMemory& memory) const;
  /// Runs one call, of the code of its micro-batch's size, and appends faults.
  void run(const program::KernelCall& call, const program::ModelCode& code, CallMemory& memory,
           std::vector<std::string>& faults) const;
  /// Checks that everything that the instruction declares to write is written.
  void check_written(const program::OperandBinding& operands, CallMemory& memory,
                     std::vector<std::string>& faults) const;
  void check_gradients(const program::OperandBinding& operands, const program::Operand& operand,
                       CallMemory& memory, std::vector<std::string>& faults) const;
  /// Equal for instructions whose calls differ only in the addresses of their operands, and which find the
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

/// Throws InternalError with all faults, if any.
void ensure_calls(const program::Program& program, CallProof& proof);

}  // namespace lockstep::proof
