#pragma once

#include <functional>
#include <vector>

#include "proof/checker.h"
#include "proof/mutations.h"

namespace lockstep::proof {

/// Applies a way of breaking programs to every golden and demands that every result is refused, for one of
/// the given reasons. `least` is a bound on how many mutants there must be: a test that breaks nothing proves
/// nothing.
void expect_all_caught(const std::function<std::vector<Mutant>(const Programs&)>& mutate,
                       const std::vector<CheckFinding::Property>& reasons, int least,
                       const std::function<bool(const Mutant&)>& is_harmless = {});

/// There is nobody to disagree with.
bool is_alone(const Mutant& mutant);

/// Whether it is a backward, or one of its halves.
bool is_backward(const program::Instruction& instruction);

}  // namespace lockstep::proof
