#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves the verdict and the flag that updates and pushes obey: they are of this step, count every leaf, and
/// cover every gradient in its place. All updates of a step, on all ranks, obey the same ones. The sums of
/// squares of a `norm` or `propose` are in their places, and scales follow from those of every parameter.
class VerdictProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void before_push(const Place& worker, const program::Operand& pushed, int server, int serve) override;

 private:
  /// A verdict or predicate of an update: what it was computed from, and which part of it is read.
  struct Obeyed {
    program::Role role;
    int index;
    int64_t position, size_bytes;
    bool has_norm, has_parameters, has_updates;
    auto operator<=>(const Obeyed&) const = default;
  };
  struct Obedience {
    Place by;
    std::vector<Obeyed> what;
  };

  void check_measured(const Place& at);
  void check_sums(const Place& at, const program::Operand& chunks);
  void check_scales(const Place& at, const program::Operand& scales);
  void check_position(const Place& at, const program::Operand& gradients, const Piece& piece);
  void check_obeyed(const Place& at);
  void check_verdict(const Place& at, const program::Operand& operand);
  void check_coverage(const Place& at, program::Role role, int expression);
  std::vector<Obeyed> obeyed_by(const Place& at);
  void check_obeys_the_same(const Place& at, const std::vector<Obeyed>& own, std::map<int, Obedience>& known);
  static std::string text_of(const std::vector<Obeyed>& list);

  std::map<int, Obedience> obeyed_;  ///< by iteration: by its first update
  std::map<int, Obedience>
      verdicts_;                     ///< by iteration: of that, and of what scales follow from, the verdicts
  std::map<int, Obedience> scaled_;  ///< by iteration: by its first update, with its scales
  std::set<int> proposed_;           ///< iterations with a `propose`
  std::map<std::pair<int, bool>, std::string> gaps_;     ///< by facts and whether they are for a flag
  std::map<std::pair<int, int>, std::string> sum_gaps_;  ///< by facts of sums and the index of their list
};

}  // namespace lockstep::proof
