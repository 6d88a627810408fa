#pragma once

#include "lockstep/error.h"

namespace lockstep {

/// Turns signals into a request to stop behind the current step. SIGUSR1 always: mpirun forwards it to all
/// ranks. SIGINT and SIGTERM only where `alone`, since mpirun also sends them to the ranks of a job that has
/// failed. The first signal of a kind asks; a second one ends the process as usual.
void install_stop_request(bool alone);
bool stop_requested();
/// What a process that stopped by request exits with: 130 after SIGINT, otherwise 143. Ranks that no signal
/// reached stop with the others, and say 143.
ExitCode stop_exit_code();

}  // namespace lockstep
