#pragma once

#include <memory>
#include <vector>

#include "proof/model_flow.h"
#include "proof/proof.h"
#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// The symbolic machine and the proofs that watch it. The code that walks through all ranks' programs calls
/// `local` for every instruction that does not communicate, in program order, and the other functions as
/// communications meet; `finish` comes last.
class Mathematics {
 public:
  /// `flow`: of the model, null if it is not known; outlives it.
  Mathematics(const ProgramWorld& world, const ModelFlow* flow, Findings& findings);

  void local(const Place& at);
  void transfer(const Place& from, const program::Operand& send, const Place& to,
                const program::Operand& receive);
  /// `members` in the order of their group.
  void collective(const std::vector<Place>& members);
  void push(const Place& worker, const program::Operand& pushed, int server, int serve);
  void pull(const Place& worker, const program::Operand& parameters, int server, int serve);
  void finish(int iterations);

 private:
  SymbolicMachine machine_;
  MathematicsFindings findings_;
  std::vector<std::unique_ptr<Proof>> proofs_;
};

}  // namespace lockstep::proof
