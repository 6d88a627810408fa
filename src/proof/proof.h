#pragma once

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proof/check_world.h"
#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// What the proofs find: each kind of fault of an instruction is told once, whichever iterations and bytes
/// show it, and whichever proof sees it first.
class MathematicsFindings {
 public:
  explicit MathematicsFindings(Findings& findings) : findings_(findings) {}

  /// `tag` is the kind of fault.
  void add(const Place& at, const std::string& tag, const std::string& what) {
    add(at.rank, at.index, tag, what);
  }
  /// Of no single instruction: -1; of no single rank: -1.
  void add(int rank, int index, const std::string& tag, const std::string& what) {
    if (reported_.insert({rank, index, tag}).second)
      findings_.add(CheckFinding::Property::mathematics, rank, index, what);
  }

 private:
  Findings& findings_;
  std::set<std::tuple<int, int, std::string>> reported_;
};

/// Watches the machine and reports what is not as it should be. It is told of everything just before it
/// happens: memory holds what is about to be read. Each rank's instructions come in program order, except
/// that communications come when all that take part have reached theirs. Pieces that nothing was written to
/// are no proof's business, but the data check's.
class Proof {
 public:
  /// Both have to outlive the proof.
  Proof(SymbolicMachine& machine, MathematicsFindings& findings) : machine_(machine), findings_(findings) {}
  virtual ~Proof() = default;
  Proof(const Proof&) = delete;
  Proof& operator=(const Proof&) = delete;

  /// An instruction that does not communicate.
  virtual void before(const Place&) {}
  /// `members` in the order of their group.
  virtual void before_collective(const std::vector<Place>& /*members*/) {}
  /// An operand of a worker's push, to a `serve`.
  virtual void before_push(const Place& /*worker*/, const program::Operand& /*pushed*/, int /*server*/,
                           int /*serve*/) {}
  /// All ranks have walked through so many iterations.
  virtual void finish(int /*iterations*/) {}

 protected:
  const ProgramWorld& world() const { return machine_.world(); }
  SymbolicMachine& machine() { return machine_; }
  Expressions& expressions() { return machine_.expressions(); }
  const program::Program& program(const Place& at) const { return machine_.program(at); }
  const program::Instruction& instruction(const Place& at) const { return machine_.instruction(at); }
  std::vector<Piece> read(const Place& at, const program::Operand& operand) {
    return machine_.read(at, operand);
  }
  /// What an expression is, for a message about this instruction.
  std::string text(const Place& at, int expression, int uses = 1) {
    return expressions().text(expression, at.iteration, uses);
  }
  MathematicsFindings& findings() { return findings_; }
  void fail(const Place& at, const std::string& tag, const std::string& what) {
    findings_.add(at, tag, what);
  }

 private:
  SymbolicMachine& machine_;
  MathematicsFindings& findings_;
};

}  // namespace lockstep::proof
