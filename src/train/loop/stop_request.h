#pragma once

#include <chrono>

#include "lockstep/error.h"

namespace lockstep::train {

/// Turns signals into a request to stop after the current step. SIGUSR1 always: mpirun forwards it to all
/// ranks. SIGINT, SIGTERM and SIGHUP only where this process is `alone`, and was not started with them
/// ignored. mpirun sends SIGTERM to the ranks of a job that has failed, and kills them a second later: there,
/// it only makes termination_requested() true. The first signal asks. The second SIGINT, SIGTERM or SIGHUP of
/// a process that is alone ends it at once, with ExitCode::ended_at_once, unless it comes within
/// kOneRequestMs of the first; SIGUSR1 does not count, however often and whenever it comes.
inline constexpr int kOneRequestMs = 250;
void install_stop_request(bool alone, std::chrono::milliseconds patience = {});
bool stop_requested();
/// A launcher has told this rank to end, and nobody has asked it to stop within the `patience` that was
/// stated.
bool termination_requested();
/// What a process that stopped by request exits with: 130 after SIGINT, otherwise 143. Ranks that no signal
/// reached stop with the others, and say 143.
ExitCode stop_exit_code();

}  // namespace lockstep::train
