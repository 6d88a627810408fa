#pragma once

namespace lockstep::train {

/// Makes SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT print on stderr which rank they end, and where in the
/// program (a list of addresses, for addr2line). Call it once per process. Does nothing in builds with
/// sanitizers, which have their own reports.
void install_crash_handler();
/// The rank that the handler names; default: rank 0.
void set_crash_rank(int rank);

}  // namespace lockstep::train
