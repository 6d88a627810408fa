#pragma once

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proof/check_world.h"
#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// The findings of the proofs. Each kind of fault of an instruction is reported once, for whichever
/// iterations, bytes and proofs show it.
class MathematicsFindings {
 public:
  explicit MathematicsFindings(Findings& findings) : findings_(findings) {}

  /// `tag` is the kind of fault.
  void add(const Place& at, const std::string& tag, const std::string& what) {
    add(at.rank, at.index, tag, what);
  }
  /// `index` -1: of no single instruction; `rank` -1: of no single rank.
  void add(int rank, int index, const std::string& tag, const std::string& what) {
    if (reported_.insert({rank, index, tag}).second)
      findings_.add(CheckFinding::Property::mathematics, rank, index, what);
  }

 private:
  Findings& findings_;
  std::set<std::tuple<int, int, std::string>> reported_;
};

/// Watches the machine and reports faults. It is told of every instruction just before it happens, when
/// memory holds what the instruction will read. Each rank's instructions come in program order, except that
/// communications come when all their ranks have reached them. Proofs ignore memory that was never written;
/// the data check handles it.
class Proof {
 public:
  /// Both must outlive the proof.
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
