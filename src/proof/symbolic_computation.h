#pragma once

#include "proof/symbolic_machine.h"

namespace lockstep::proof {

/// What an instruction that does not communicate leaves in its rank's memory; one function per kind. It
/// reports nothing: what may be wrong with what it reads is for the proofs to say.
void compute(SymbolicMachine& machine, const Place& at);

}  // namespace lockstep::proof
