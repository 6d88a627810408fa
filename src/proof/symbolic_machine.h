#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proof/check_world.h"
#include "proof/expressions.h"
#include "proof/held_parameters.h"
#include "proof/symbolic_memory.h"

namespace lockstep::proof {

/// All ranks' memory with expressions instead of numbers, initially as before the first iteration. The
/// effects of instructions are in symbolic_computation.h and symbolic_communication.h; the proofs say what
/// must be true before them. The data check proves that every allowed order computes the same as program
/// order, so one walk through the programs is enough.
class SymbolicMachine {
 public:
  /// The world must outlive the machine.
  explicit SymbolicMachine(const ProgramWorld& world);

  const ProgramWorld& world() const { return world_; }
  const program::Program& program(const Place& at) const { return world_.program(at.rank); }
  const program::Instruction& instruction(const Place& at) const {
    return world_.instruction(at.rank, at.index);
  }
  const HeldParameters& held() const { return held_; }
  Expressions& expressions() { return expressions_; }
  SymbolicMemory& memory(int rank) { return nth(memories_, rank); }

  /// For an instruction that computes with what it reads, as numbers of that type: pieces of another type are
  /// wrong. Instructions that only move bytes use the memory directly.
  std::vector<Piece> read(const Place& at, const program::ByteRange& range, DType dtype);
  std::vector<Piece> read(const Place& at, const program::Operand& operand) {
    return read(at, operand.range, operand.dtype);
  }

  /// The micro-batch of an instruction, as the gradient of one use of a parameter; of the first of its
  /// leaves.
  Expressions::Atom atom(const Place& at, int use) const;
  /// The gradient that an instruction makes of one use: of one leaf, or the tree over all that its
  /// micro-batch holds.
  int gradient(const Place& at, int use);
  /// What a sum or copy of a gradient is once it is stored in elements of a type: rounded if that is the
  /// wire's, and wrong if it is another narrow one. Anything else stays what it is.
  int stored(int expression, DType dtype);
  /// What is cast from elements of one type to those of another: as stored() has it of gradients. Anything
  /// else may become narrower, but nothing comes back from that.
  int converted(int expression, DType from, DType to);
  /// The number of what a segment's instruction leaves in an output, stash or gradient of an input, the
  /// ordinal-th that it writes of this role: the same for every micro-batch, on every rank.
  uint64_t signature_of(const Place& at, const program::Operand& operand, int ordinal) const;
  /// Whether a piece of gradient is final for an update: complete, and in the required order. If gradients
  /// are pushed to servers: the sum of the rank's own leaves.
  bool is_final_gradient(const Place& at, const Piece& piece);
  /// "byte 64 of 'w'"
  std::string name_of(const Piece& piece) const;

 private:
  bool is_own_gradient(const Place& at, const Piece& piece, int uses);
  void enter_initial_contents();
  void enter_residuals(int rank);

  const ProgramWorld& world_;
  HeldParameters held_;
  Expressions expressions_;
  std::vector<SymbolicMemory> memories_;  ///< by rank
  /// What gradient() has made, by first leaf and number of leaves: parameters have the same.
  std::map<std::pair<Expressions::Atom, int>, int> gradients_;
};

}  // namespace lockstep::proof
