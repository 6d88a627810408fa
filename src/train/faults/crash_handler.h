#pragma once

namespace lockstep::train {

/// Lets SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT say on stderr which rank they ended, and where in the
/// program (a list of addresses, for addr2line), before they do. Once per process; does nothing in builds
/// with sanitizers, which have reports of their own.
void install_crash_handler();
/// Whom the handler names; by default rank 0.
void set_crash_rank(int rank);

}  // namespace lockstep::train
