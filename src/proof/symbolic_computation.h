#pragma once

#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// The effect of an instruction that does not communicate on its rank's memory. It reports nothing: the
/// proofs check what the instruction reads.
void compute(SymbolicMachine& machine, const Place& at);

}  // namespace lockstep::proof
