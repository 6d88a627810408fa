#pragma once

#include <map>
#include <span>
#include <vector>

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves versions of parameters and optimizer state: reads of parameters in step k find them after exactly k
/// updates, each byte in its place, and a segment finds all parameters that it uses. If any rank trains,
/// every step updates every parameter and its state.
class ParameterProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void before_push(const Place& worker, const program::Operand& pushed, int server, int serve) override;
  void finish(int iterations) override;

 private:
  void check_read(const Place& at, const program::Operand& operand);
  void check_read(const Place& at, const program::Operand& operand, const Piece& piece,
                  std::span<const HeldRun> expected);
  void check_use(const Place& at);
  void check_used_is_whole(const Place& at, const std::vector<Expressions::Coverage>& read_here);
  void check_update(const Place& at, const program::Operand& parameters);
  void check_state(const Place& at, const program::Operand& state);

  std::map<int, std::vector<Expressions::Coverage>> updated_;  ///< by iteration; what is pushed, too
};

}  // namespace lockstep::proof
