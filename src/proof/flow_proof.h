#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "proof/model_flow.h"
#include "proof/proof.h"

namespace lockstep::proof {

/// Proves that programs follow the model's graph: a segment's instructions read and write exactly the values
/// and gradients that cross its ends; each is the one that its operand's index names; parameters have the
/// uses of the graph. So each use of each value adds to its gradient exactly once, and it is a fault even if
/// all ranks omit the same use. CallProof proves what happens within an instruction.
class FlowProof : public Proof {
 public:
  /// All must outlive the proof.
  FlowProof(SymbolicMachine& machine, MathematicsFindings& findings, const ModelFlow& flow);

  void before(const Place& at) override;

 private:
  /// A value, or its gradient, by whose memory is its.
  struct Made {
    bool is_gradient;
    int storage;
    bool operator==(const Made&) const = default;
  };

  void check_parameters();
  void check_lists(const Place& at, const SegmentFlow& flow);
  /// That the instruction's operands of a role are of these values.
  void check_list(const Place& at, program::Role role, std::span<const int> wanted);
  void check_read(const Place& at, const program::Operand& operand);
  void note_written(const Place& at);
  std::string text(const Made& made) const;
  std::string text(std::span<const int> storages) const;

  const ModelFlow& flow_;
  std::map<uint64_t, Made> made_;  ///< by the signature of what makes it
};

}  // namespace lockstep::proof
