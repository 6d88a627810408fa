#pragma once

namespace lockstep::device {

/// Makes OpenMP regions of the calling thread, including those of libraries, use exactly so many threads from
/// now on, whatever OMP_DYNAMIC says. The setting is per thread: every thread that runs ops makes it.
void set_openmp_team(int threads);

/// Calls set_openmp_team and checks it: begins a region and counts threads. Libraries divide a product among
/// the threads that they ask for; with fewer threads numbers are wrong, or threads wait at a barrier for
/// ever. Throws ConfigError, which names the environment variable that allows fewer.
void require_openmp_team(int threads);

}  // namespace lockstep::device
