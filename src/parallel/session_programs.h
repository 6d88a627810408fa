#pragma once

#include "parallel/program_plan.h"

namespace lockstep::parallel {

/// The programs of workers that do not wait for each other, and of their servers (mode=stale, mode=async).
/// Drawn for three segments (P pull, F forward, B backward, A the worker's own loss, N its norm, p push). On
/// the right: without clipping and checks for non-finite gradients, pushes do not wait for N:
///
///     pull      P0 P1 P2
///     compute      F0 F1 F2 B2 B1 B0 N            or  F0 F1 F2 B2 B1 B0
///     alone                 A                                  A
///     push                             p2 p1 p0                      p2 p1 p0
///
/// Empty for a server that is no worker.
program::Program compile_session_step(const ProgramPlan& plan, int rank);

/// A server's program from one meeting of all ranks to the next: one `serve` for each range, all active at
/// the same time. Empty on other ranks.
program::Program compile_serve(const ProgramPlan& plan, int rank);

/// The program after a session: every worker receives the last version of what others serve, in the order of
/// segments.
program::Program compile_gather(const ProgramPlan& plan, int rank);

}  // namespace lockstep::parallel
