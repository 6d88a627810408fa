#pragma once

#include <chrono>

#include "lockstep/error.h"

namespace lockstep::train {

/// Turns signals into a request to stop after the current step. SIGUSR1 always is one: mpirun forwards it to
/// all ranks. SIGINT, SIGTERM and SIGHUP are one if this process is `alone` and was not started with them
/// ignored. Under mpirun SIGTERM only makes termination_requested() true: mpirun sends it to the ranks of a
/// failed job, and kills them a second later.
///
/// A second SIGINT, SIGTERM or SIGHUP ends a process that is alone at once, with ExitCode::ended_at_once,
/// unless it comes within kOneRequestMs of the first. SIGUSR1 never counts as a second signal.
inline constexpr int kOneRequestMs = 250;
void install_stop_request(bool alone, std::chrono::milliseconds patience = {});
bool stop_requested();
/// Whether a launcher has told this rank to end, and nobody has asked it to stop within the stated
/// `patience`.
bool termination_requested();
/// The exit code of a process that stopped by request: 130 after SIGINT, otherwise 143. Ranks that no signal
/// reached stop with the others, with 143.
ExitCode stop_exit_code();

}  // namespace lockstep::train
