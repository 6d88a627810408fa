#pragma once

namespace lockstep::device {

/// OpenMP regions of the calling thread, and those that libraries begin on it, take exactly so many threads
/// from now on, whatever OMP_DYNAMIC says. The setting is a thread's own: every thread that runs ops makes
/// it.
void set_openmp_team(int threads);

/// set_openmp_team, and proof of it: begins a region and counts. Libraries divide a product among the threads
/// that they asked for; what fewer of them leave undone is wrong numbers, or a barrier at which they wait for
/// ever. Throws ConfigError naming the variable of the environment that allows fewer.
void require_openmp_team(int threads);

}  // namespace lockstep::device
